"""Adapters that cannot answer together with others, and those whose files are damaged."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peft import IA3Config, LoraConfig, OFTConfig, PeftConfig
from peft.tuners import lora
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import Qwen2MoeConfig

from studio.errors import InvalidError
from studio.runner.inference.mixed_adapters import BASE
from studio.runner.inference.model_cache import ModelCache
from tests.training.models.mixed_answers import (
    ROWS,
    Models,
    alone,
    ask,
    assert_same,
    make_models,
    make_models_with_loras,
)
from tests.training.models.small_families import SIZES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models_with_loras(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def loaded() -> ModelCache:
    return ModelCache()


def kinds() -> Iterator[tuple[str, PeftConfig]]:
    plain: dict[str, Any] = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "up_proj"]}
    random = plain | {"init_lora_weights": False}
    yield "dora", LoraConfig(**random, use_dora=True)
    yield "norms", LoraConfig(**random, modules_to_save=["norm"])
    yield "output", LoraConfig(**random, modules_to_save=["lm_head"])
    yield "oft", OFTConfig(**plain, oft_block_size=8, init_weights=False)
    yield "ia3", IA3Config(**plain, feedforward_modules=["up_proj"])


@pytest.fixture(scope="module")
def unmixable(models: Models) -> list[str]:
    """Write adapters of kinds that peft does not mix in a batch."""
    return [models.write(name, config).name for name, config in kinds()]


KINDS = ["dora", "norms", "output", "oft", "ia3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("comes_first", [True, False])
def test_adapter_that_peft_does_not_mix_answers_by_itself(
    kind: str, models: Models, unmixable: list[str], *, comes_first: bool
) -> None:
    assert kind in unmixable
    others = ["wide", "base", "narrow"]
    names = [kind, kind, *others] if comes_first else [*others, kind, kind]
    requests = [models.request(name, number) for number, name in enumerate(names)]
    loaded = ModelCache()

    heard, room = ask(loaded, requests)

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    assert len({one.text for one in heard}) == len(names)
    together = {frozenset(names) for names in room.passes}
    assert max(len(names) for names in together) == len(others)
    again, _room = ask(loaded, requests)
    assert [one.text for one in again] == [one.text for one in heard]


def test_adapter_whose_weights_are_no_numbers_harms_no_other(models: Models) -> None:
    weights = models.write_lora("broken", r=4) / "adapter_model.safetensors"
    save_file({name: weight / 0 for name, weight in load_file(weights).items()}, weights)
    names = ("wide", "base", "broken", "narrow")
    requests = [models.request(name, number) for number, name in enumerate(names)]
    requests[2] = requests[2].model_copy(update={"top_logprobs": None})

    heard, room = ask(ModelCache(), requests)

    for place in (0, 1, 3):
        assert_same(heard[place], alone(requests[place]))
    assert heard[2].pieces == alone(requests[2]).pieces
    assert all(len({*names}) == 1 for names in room.passes if "adapter2" in names)


def test_adapters_with_new_tokens_answer_one_after_another(models: Models) -> None:
    """A base with new tokens has no other adapters."""
    for name in ("tokens", "words"):
        models.write_lora(name, trainable_token_indices=[5, 6, 7, 8, 9])
    requests = [models.request(name, 1) for name in ("tokens", "base", "words", "tokens")]

    heard, room = ask(ModelCache(), requests)

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    assert len({one.text for one in heard}) == 3
    assert {len({*names}) for names in room.passes} == {1}


def test_others_mix_while_adapters_that_do_not_are_kept(
    models: Models, unmixable: list[str]
) -> None:
    loaded = ModelCache()
    others = [models.request(name) for name in unmixable if name not in ("oft", "ia3")]
    for request in others:
        ask(loaded, [request])
    requests = [models.request(name, number) for number, name in enumerate(ROWS)]

    heard, room = ask(loaded, requests)

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    assert max(len({*names}) for names in room.passes) == len(ROWS)


def test_experts_that_read_all_rows_as_one_list_are_not_mixed(tmp_path: Path) -> None:
    config = Qwen2MoeConfig(
        **SIZES,
        num_key_value_heads=1,
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    models = make_models(tmp_path, config)
    models.write_lora("attention", target_modules=["q_proj"], r=4)
    models.write_lora("experts", target_modules=["q_proj", "up_proj"], r=4)
    requests = [
        models.request(name, number)
        for number, name in enumerate(["attention", "base", "experts", "base", "experts"])
    ]

    heard, room = ask(ModelCache(), requests)

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    mixed = {frozenset(names) for names in room.passes if len({*names}) > 1}
    assert mixed == {frozenset({BASE, "adapter1"})}


def damage(models: Models, name: str, how: str) -> None:
    folder = models.write_lora(name)
    weights = folder / "adapter_model.safetensors"
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "config":
        (folder / "adapter_config.json").write_text("{")
    elif how == "none":
        (folder / "adapter_config.json").unlink()
    else:
        other = models.write_lora(f"{name}-other", r=5) / "adapter_model.safetensors"
        weights.write_bytes(other.read_bytes())


@pytest.mark.parametrize("how", ["cut", "config", "none", "other rank"])
def test_damaged_adapter_is_refused_and_changes_no_other(
    how: str, models: Models, loaded: ModelCache
) -> None:
    damage(models, how, how)
    broken = models.request(how)
    for used in (ModelCache(), loaded):
        base = used.base_for(broken)
        with pytest.raises(InvalidError, match="The adapter cannot be loaded: its files are"):
            base.activate_beside(broken, ())
        assert len(getattr(base.model, "peft_config", {})) == len(base.adapters)

        requests = [models.request(name, number) for number, name in enumerate(ROWS)]
        heard, _room = ask(used, requests)
        for request, one in zip(requests, heard, strict=True):
            assert_same(one, alone(request))


def test_each_layer_of_peft_that_computes_mixed_rows_says_so() -> None:
    """The layers that are believed to compute them are those that peft itself does not refuse."""
    layers: list[Any] = [
        layer
        for layer in vars(lora).values()
        if inspect.isclass(layer) and issubclass(layer, LoraLayer) and layer is not LoraLayer
    ]
    mixing = {
        layer.__name__
        for layer in layers
        if "_mixed_batch_forward" in inspect.unwrap(layer.forward).__code__.co_names
    }

    assert {"Linear", "Embedding", "Conv2d"} <= mixing
    for layer in layers:
        source = inspect.getsource(layer._check_forward_args)
        refuses = "does not support mixed adapter batches" in source
        assert not (refuses and layer.__name__ in mixing)
