"""One base with adapters that are swapped on it, and what is written of tokens as they come."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, OFTConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from studio.errors import InvalidError, UnavailableError
from studio.methods import RECIPE_ADAPTER
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.adapters import Lora
from studio.runner.inference.decoding import MAX_PADDED_TOKENS
from studio.runner.inference.model_cache import MAX_ADAPTERS, ModelCache
from studio.runner.inference.text_stream import TextStream
from studio.training.checkpoints import trainer_state
from studio.training.checkpoints.store import CheckpointStore
from studio.training.models import loader, positions
from studio.weights import model_facts
from tests.support import generated_answers
from tests.training.tiny import RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(scope="module")
def base(starter_model: Path) -> Path:
    return starter_model


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(base)


@pytest.fixture(scope="module")
def voices() -> ModelCache:
    return ModelCache()


def adapter(base: Path, folder: Path, seed: int) -> Path:
    """Write an adapter that has learnt nothing, and changes every answer."""
    torch.manual_seed(seed)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter(base, tmp_path_factory.mktemp("voices") / "tuned", 1)


def test_text_that_is_read_counts_for_the_memory_that_a_model_needs(base: Path) -> None:
    facts = model_facts.read(base)
    assert facts.shape is not None
    weights = 4 * facts.parameters
    text = 4 * MAX_PADDED_TOKENS * 2 * facts.shape.layers * facts.shape.key_width
    request = GenerationRequest(model=str(base), ids=[], stops=[])

    with (
        pytest.raises(UnavailableError, match="All slots are taken, and this model needs"),
        ModelCache(weights + text - 1).model_for(request),
    ):
        pass
    with ModelCache(weights + text).model_for(request) as (model, _tokenizer):
        assert sum(weight.numel() for weight in model.parameters()) == facts.parameters


def test_pinned_base_stays_loaded_beside_others(base: Path, tmp_path: Path) -> None:
    cache = ModelCache()
    other, third = (shutil.copytree(base, tmp_path / name) for name in ("other", "third"))

    def ask(folder: Path, pins: str = "") -> GenerationRequest:
        return GenerationRequest(model=str(folder), ids=[], stops=[], pins=pins)

    pinned = cache.base_for(ask(base, "pets"))
    cache.base_for(ask(other))
    cache.base_for(ask(third))
    assert cache.base_for(ask(base)) is pinned
    assert cache.is_loaded(ask(third))
    assert not cache.is_loaded(ask(other))

    cache.unpin("pets")
    assert not cache.has_pins
    cache.base_for(ask(other))
    assert not cache.is_loaded(ask(base))


def test_adapters_of_different_kinds_take_turns(
    voices: ModelCache, base: Path, tuned: Path, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    config = OFTConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_weights=False)
    rotated = tmp_path / "rotated"
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(rotated)
    AutoTokenizer.from_pretrained(base).save_pretrained(rotated)
    plain, first = answer(voices, base), answer(voices, base, tuned)
    second = answer(voices, base, rotated)

    assert len({plain, first, second}) == 3
    assert (answer(voices, base), answer(voices, base, tuned)) == (plain, first)


def checkpoint(model: nn.Module, folder: Path) -> Path:
    """Write the weights of a step, as a run that trains them does."""
    shelf = CheckpointStore(folder, RECIPE_ADAPTER.validate_python(RECIPE))
    with shelf.write(20, None) as partial:
        save_file(trainer_state.trained_weights(model), partial / trainer_state.WEIGHTS)
    return shelf.folder_for(20)


def answer(
    voices: ModelCache,
    base: Path,
    tuned: Path | None = None,
    weights: Path | None = None,
    lora: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> str:
    asked = GenerationRequest(
        model=str(base),
        adapter=str(tuned or ""),
        weights=str(weights or ""),
        lora=lora or {},
        options=options or {},
        ids=[5, 6, 7],
        stops=[-1],
        most=12,
        temperature=0,
        is_turn=False,
    )
    with voices.model_for(asked) as (model, tokenizer):
        return generated_answers.answer(asked, model, tokenizer).text


def test_adapter_changes_answers_without_changing_base(
    voices: ModelCache, base: Path, tuned: Path
) -> None:
    before = answer(voices, base)

    found = answer(voices, base, tuned)

    assert found != before
    assert answer(voices, base) == before
    assert answer(voices, base, tuned) == found
    assert answer(ModelCache(), base, tuned) == found


def test_retrained_adapter_is_reloaded(voices: ModelCache, base: Path, tmp_path: Path) -> None:
    folder = adapter(base, tmp_path / "tuned", 2)
    before = answer(voices, base, folder)
    adapter(base, folder, 3)

    assert answer(voices, base, folder) != before


def test_adapter_answers_from_checkpoint_weights(
    voices: ModelCache, base: Path, tuned: Path, tmp_path: Path
) -> None:
    other = adapter(base, tmp_path / "other", 4)
    taught = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), other, is_trainable=True
    )
    step = checkpoint(taught, tmp_path / "checkpoints")
    ended = answer(voices, base, tuned)

    assert answer(voices, base, tuned, step) == answer(voices, base, other) != ended
    assert answer(voices, base, tuned) == ended


@pytest.mark.parametrize(
    "changes",
    [{}, {"target_modules": "mlp", "last_layers": 2}, {"extra_modules": "norms_and_embeddings"}],
)
def test_checkpoint_answers_before_its_run_has_saved_an_adapter(
    changes: dict[str, Any], voices: ModelCache, base: Path, tuned: Path, tmp_path: Path
) -> None:
    section = Lora(r=4, lora_alpha=8, **changes)
    config = loader.adapter_config(section, AutoModelForCausalLM.from_pretrained(base))
    assert config is not None
    config.init_lora_weights = False
    torch.manual_seed(6)
    taught = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    taught.save_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "saved")
    step = checkpoint(taught, tmp_path / "checkpoints")
    expected = answer(ModelCache(), base, tmp_path / "saved")
    lora = section.model_dump()

    assert answer(ModelCache(), base, weights=step, lora=lora) == expected != answer(voices, base)
    assert answer(voices, base, tuned) != expected
    assert answer(voices, base, weights=step, lora=lora) == expected


def test_full_model_answers_from_checkpoint_weights(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    taught = AutoModelForCausalLM.from_pretrained(base)
    for one in taught.parameters():
        one.data += 0.05 * torch.randn_like(one)
    step = checkpoint(taught, tmp_path / "checkpoints")
    taught.save_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "saved")
    voices = ModelCache()
    before = answer(voices, base)

    assert answer(voices, base, weights=step) == answer(voices, tmp_path / "saved") != before
    assert answer(voices, base) == before


def test_checkpoint_with_stretched_positions_answers_as_its_saved_model(
    base: Path, tmp_path: Path
) -> None:
    options = {"rope_type": "linear", "rope_factor": 8.0}
    config = loader.load_config(str(base))
    positions.stretch(config, "linear", 8.0)
    taught = AutoModelForCausalLM.from_pretrained(base, config=config)
    step = checkpoint(taught, tmp_path / "checkpoints")
    taught.save_pretrained(tmp_path / "saved")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "saved")
    expected = answer(ModelCache(), tmp_path / "saved")

    assert answer(ModelCache(), base, weights=step, options=options) == expected
    assert answer(ModelCache(), base, weights=step) != expected


@pytest.mark.parametrize("is_adapter", [True, False])
def test_broken_checkpoint_is_rejected(
    voices: ModelCache, base: Path, tuned: Path, tmp_path: Path, *, is_adapter: bool
) -> None:
    step = checkpoint(torch.nn.Linear(2, 2), tmp_path)
    weights = step / trainer_state.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")

    with pytest.raises(
        InvalidError, match=r"safetensors has changed since it was written\."
    ) as caught:
        answer(voices, base, tuned if is_adapter else None, step)

    assert caught.value.hint == "Choose another checkpoint, or the run's final model."


def test_number_of_cached_adapters_is_limited(voices: ModelCache, base: Path, tuned: Path) -> None:
    found = answer(voices, base, tuned)
    for _ in range(MAX_ADAPTERS):
        # It is another one by the moment it was written.
        (tuned / "adapter_model.safetensors").touch()
        assert answer(voices, base, tuned) == found

    (loaded,) = voices._bases
    assert len(loaded.adapters) == len(loaded.model.peft_config) == MAX_ADAPTERS


@pytest.mark.parametrize("text", ["Plain words.", "Zwölf Boxkämpfer", "日本語 🎉 fin"])
def test_stream_emits_only_complete_characters(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    said = TextStream(tokenizer, [], strips_start=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    parts = [said.add(token) for token in ids]

    assert "".join(parts) + said.finish() == tokenizer.decode(ids)
    assert "�" not in "".join(parts)


def test_multi_token_stop_string_is_never_partly_streamed(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    said = TextStream(tokenizer, ["</end>"], strips_start=True)
    ids = tokenizer(" Good. </en and </end> more", add_special_tokens=False)["input_ids"]

    parts = [said.add(token) for token in ids]

    assert ("".join(parts) + said.finish(), said.has_stopped) == ("Good. </en and ", True)
