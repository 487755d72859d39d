"""Answers of several adapters that are decoded together: each is as if its adapter were alone."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from studio.methods import RECIPE_ADAPTER
from studio.protocols.inference_service import GenerationRequest
from studio.runner.inference.mixed_adapters import answering
from studio.runner.inference.model_cache import MAX_ADAPTERS, ModelCache
from studio.training.checkpoints import trainer_state
from studio.training.checkpoints.store import CheckpointStore
from tests.support import generated_answers
from tests.training import tiny
from tests.training.models.mixed_answers import (
    LORAS,
    ROWS,
    Heard,
    Models,
    alone,
    ask,
    ask_for,
    assert_same,
    make_models,
    make_models_with_loras,
)
from tests.training.models.small_families import SMALL_FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models_with_loras(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module", params=["", "bfloat16"])
def formats(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the format of the base that the adapters were trained on."""
    return {"base_dtype": request.param, "precision": "fp32"} if request.param else {}


@pytest.fixture(scope="module")
def expected(
    models: Models, formats: dict[str, str]
) -> dict[str, tuple[GenerationRequest, generated_answers.Answer]]:
    requests = {name: models.request(name, number, **formats) for number, name in enumerate(ROWS)}
    found = {name: (request, alone(request)) for name, request in requests.items()}
    assert len({answer.text for _, answer in found.values()}) == len(ROWS)
    return found


@pytest.fixture(scope="module")
def loaded() -> ModelCache:
    return ModelCache()


@pytest.mark.parametrize("order", [*permutations(ROWS)])
def test_mixed_answers_are_those_of_each_alone_in_any_order_of_joining(
    order: tuple[str, ...],
    expected: dict[str, tuple[GenerationRequest, generated_answers.Answer]],
) -> None:
    heard, room = ask(ModelCache(), [expected[name][0] for name in order])

    for name, one in zip(order, heard, strict=True):
        assert_same(one, expected[name][1])
    assert max(len({*names}) for names in room.passes) == len(ROWS)


def test_each_adapter_answers_same_words_in_its_way(models: Models, loaded: ModelCache) -> None:
    requests = [models.request(name, 2) for name in (*ROWS, *ROWS)]

    heard, _room = ask(loaded, requests)

    assert [one.text for one in heard[:4]] == [one.text for one in heard[4:]]
    assert len({one.text for one in heard}) == len(ROWS)
    for request, one in zip(requests[:4], heard, strict=False):
        assert_same(one, alone(request))


def test_one_may_leave_early_and_another_end_early(models: Models, loaded: ModelCache) -> None:
    requests = [models.request(name, number, most=40) for number, name in enumerate(ROWS)]
    requests[1] = requests[1].model_copy(update={"most": 5})
    heard = [Heard(), Heard(), Heard(leaves_after=7), Heard()]

    ask_for(loaded, [*zip(requests, heard, strict=True)])

    for place in (0, 1, 3):
        assert_same(heard[place], alone(requests[place]))
    assert len(heard[2].pieces) < 12


def test_memory_that_is_short_for_all_lets_each_be_answered_by_its_adapter(
    models: Models, loaded: ModelCache
) -> None:
    requests = [models.request(name, number) for number, name in enumerate(ROWS)]
    base = loaded.base_for(requests[0])

    def refuse(_module: object, _args: object, arguments: dict[str, Any]) -> None:
        if len(arguments["input_ids"]) > 1 and arguments["input_ids"].shape != (2, 3):
            raise torch.OutOfMemoryError

    hook = base.plain.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        heard, _room = ask(loaded, requests)
    finally:
        hook.remove()

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    assert not any(
        module._forward_pre_hooks
        for module in base.model.modules()
        if isinstance(module, LoraLayer)
    )


def test_error_in_a_pass_leaves_nothing_of_its_rows_behind(
    models: Models, loaded: ModelCache
) -> None:
    request = models.request("wide")
    (before,), _room = ask(loaded, [request])
    base = loaded.base_for(request)
    names = [base.activate(models.request(name)) for name in ("wide", "narrow")]

    with pytest.raises(ValueError, match="stop"), answering(base.model, names):
        raise ValueError("stop")

    (after,), _room = ask(loaded, [request])
    assert after.pieces == before.pieces


def test_rows_are_rounded_as_those_of_their_adapter_alone(models: Models) -> None:
    """In 16 bits, as on a GPU: an adapter is added in its own format, and rounded once."""
    base = ModelCache().base_for(models.request("base"))
    base.plain.to(torch.bfloat16)
    names = [base.activate(models.request(name)) for name in ROWS]
    ids = torch.arange(24).reshape(4, 6)

    def logits(names: list[str]) -> torch.Tensor:
        with torch.inference_mode(), answering(base.model, names):
            found: torch.Tensor = base.plain(input_ids=ids).logits
        return found

    mixed = logits(names)

    assert mixed.dtype == torch.bfloat16
    for row, name in enumerate(names):
        assert torch.equal(mixed[row], logits([name] * 4)[row])


@pytest.mark.parametrize("family", [name for name in SMALL_FAMILIES if name != "llama"])
def test_families_mix(family: str, tmp_path: Path) -> None:
    models = make_models(tmp_path, SMALL_FAMILIES[family])
    models.write_lora("one", target_modules="all-linear", r=3)
    models.write_lora("two", target_modules="all-linear", r=5, use_rslora=True)
    names = ("one", "base", "two")
    requests = [models.request(name, number) for number, name in enumerate(names)]

    heard, room = ask(ModelCache(), requests)

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    assert max(len({*names}) for names in room.passes) == 3


def test_checkpoints_of_a_run_mix_with_its_result(models: Models, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", RECIPE_ADAPTER.validate_python(tiny.RECIPE))
    steps = []
    for step in (20, 40):
        torch.manual_seed(step)
        section = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **LORAS["wide"])
        taught = get_peft_model(AutoModelForCausalLM.from_pretrained(models.base), section)
        with store.write(step, None) as partial:
            save_file(trainer_state.trained_weights(taught), partial / trainer_state.WEIGHTS)
        steps.append(str(store.folder_for(step)))
    requests = [
        models.request("wide"),
        models.request("wide", weights=steps[0]),
        models.request("base"),
        models.request("wide", weights=steps[1]),
        # A run that has not saved its adapter.
        models.request(
            "base", weights=steps[1], lora={"r": 16, "lora_alpha": 12, "use_rslora": True}
        ),
    ]
    requests[4].lora["kind"] = "lora"

    heard, room = ask(ModelCache(), requests)

    for request, one in zip(requests, heard, strict=True):
        assert_same(one, alone(request))
    assert [one.text == heard[3].text for one in heard] == [False, False, False, True, True]
    assert max(len({*names}) for names in room.passes) == 5


def test_adapter_that_answers_is_kept_while_others_come_and_go(
    models: Models, loaded: ModelCache
) -> None:
    guests = [models.write_lora(f"guest{number}", r=1).name for number in range(MAX_ADAPTERS + 1)]
    lasting = models.request("wide", most=100)
    requests = [lasting, *(models.request(name, 1, most=2) for name in guests)]

    heard, room = ask(loaded, requests)

    assert_same(heard[0], alone(lasting))
    for request, one in zip(requests[1:], heard[1:], strict=True):
        assert_same(one, alone(request))
    answered_first = {names[0] for names in room.passes if len(names) > 1}
    assert len(answered_first) == 1  # It answered from the first to the last of them.
    assert len(room.base.adapters) == MAX_ADAPTERS
