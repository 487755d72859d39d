"""Rows of new tokens trained next to LoRA: in real runs, resumed, exported, read and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from studio.protocols.events import Failed, Finished
from studio.protocols.inference_service import GenerationRequest
from studio.runner.execution import execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import exported, logits
from tests.training.models.test_continued_adapter import continue_run
from tests.training.models.test_new_tokens import NEW, TABLES, TEXTS
from tests.training.models.test_trained_weights import small
from tests.training.runs import test_classification, test_preferences

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA: dict[str, Any] = NEW | {"adapter__kind": "lora", "adapter__r": 4}


@pytest.fixture(params=["llama", "tied llama", "gpt2", "gpt_neox"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a model whose tables are as long as its vocabulary."""
    config = small(request.param)
    config.vocab_size = len(tiny.tokenizer())
    return tiny.write_model(tmp_path / "base", config)


def tables(model: Any) -> list[Tensor]:  # noqa: ANN401 -- any model of upstream
    return [model.get_input_embeddings().weight, model.get_output_embeddings().weight]


def load_adapter(base: Path, folder: Path) -> Any:  # noqa: ANN401 -- a model of peft
    """Load an adapter on its base as its card says."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(len(AutoTokenizer.from_pretrained(folder)))
    return PeftModel.from_pretrained(model, folder)


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_only_the_new_rows_move(precision: str, base: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", base, **LORA, precision=precision)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    losses = tiny.metric_values(run, "eval_loss")
    assert losses[-1] < losses[0]

    folder, _metrics = exported(run, "float32", "merged")
    original = AutoModelForCausalLM.from_pretrained(base)
    merged = AutoModelForCausalLM.from_pretrained(folder.files)
    reader = AutoTokenizer.from_pretrained(folder.files)
    ids = reader.convert_tokens_to_ids([*TEXTS])
    pieces = [AutoTokenizer.from_pretrained(base).encode(text) for text in TEXTS]
    for before, after in zip(tables(original), tables(merged), strict=True):
        assert len(after) == len(reader) == len(before) + len(TEXTS)
        assert torch.equal(after[: len(before)], before)
        starts = torch.stack([before[part].mean(0) for part in pieces])
        assert (after[ids] - starts)[0].abs().max() > 0.003
    is_tied = original.config.tie_word_embeddings
    assert (tables(merged)[0] is tables(merged)[1]) == is_tied
    torch.testing.assert_close(
        logits(merged), logits(load_adapter(base, run.artifacts)), rtol=1e-4, atol=2e-5
    )
    saved = load_file(run.artifacts / "adapter_model.safetensors")
    rows = [weight for name, weight in saved.items() if ".lora_" not in name]
    assert [tuple(weight.shape) for weight in rows] == [(2, 32)] * (1 if is_tied else 2)
    assert {weight.dtype for weight in rows} == {torch.float32}


CASES: dict[str, dict[str, Any]] = {
    "dora": {"adapter__variant": "dora"},
    "pissa": {"adapter__variant": "pissa"},
    "eva": {"adapter__variant": "eva"},
    "8-bit adamw": {"optimisation__optim": "adamw_8bit"},
    "own rate": {"optimisation__embedding_learning_rate": 0.001},
    "output": {"adapter__extra_modules": "output"},
    "norms": {"adapter__extra_modules": "norms"},
    "last layer": {"adapter__last_layers": 1},
    "checkpointed": {"optimisation__activation_checkpointing": True},
    "packed": {"data__packing": True, "data__max_length": 90},
    "embeddings": {"adapter__extra_modules": "embeddings"},
    "oft": {"adapter__kind": "oft", "adapter__extra_modules": "embeddings"},
}
"""What else is set; `oft` has none of LoRA's settings."""


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    config = small("llama")
    config.vocab_size = len(tiny.tokenizer())
    return tiny.write_model(tmp_path / "base", config)


@pytest.mark.parametrize("case", CASES)
def test_merged_model_equals_its_adapter_on_the_base(
    case: str, llama: Path, tmp_path: Path
) -> None:
    changes = LORA | CASES[case]
    if case == "oft":
        del changes["adapter__r"]
    run = tiny.train(tmp_path / "run", llama, **changes)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    folder, _metrics = exported(run, "float32", "merged")
    merged = AutoModelForCausalLM.from_pretrained(folder.files)

    torch.testing.assert_close(
        logits(merged), logits(load_adapter(llama, run.artifacts)), rtol=1e-4, atol=2e-5
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resumed_run_equals_uninterrupted_run(precision: str, base: Path, tmp_path: Path) -> None:
    changes = LORA | STEPS | SAVED | {"precision": precision}
    whole = tiny.train(tmp_path / "whole", base, **changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    # In float16, the first step of the resumed run may be skipped: its norm is NaN.
    assert repr(resumed_runs.curve(again)) == repr(resumed_runs.curve(whole))
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("dtype", ["nf4", "int8"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_are_trained_next_to_a_quantised_model(
    dtype: str, precision: str, llama: Path, tmp_path: Path
) -> None:
    changes = LORA | {"precision": precision, "adapter__base_dtype": dtype}
    run = tiny.train(tmp_path / "run", llama, **changes)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    folder, metrics = exported(run, "float32", "merged")
    merged = AutoModelForCausalLM.from_pretrained(folder.files)
    original = AutoModelForCausalLM.from_pretrained(llama)
    saved = load_file(run.artifacts / "adapter_model.safetensors")

    for before, after, name in zip(tables(original), tables(merged), TABLES, strict=True):
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        rows = saved[f"{layer}.token_adapter.trainable_tokens_delta"]
        assert torch.equal(after[len(before) :], rows)
        assert torch.equal(after[: len(before)], before.to(_half(precision)).float())
    assert metrics["perplexity_after"] == pytest.approx(metrics["perplexity_before"], rel=0.02)


def _half(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def test_adapter_alone_is_exported_with_its_tokens(llama: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", llama, **LORA)
    folder, metrics = exported(run, "float32", "adapter")

    loaded = logits(load_adapter(llama, folder.files))
    assert torch.equal(loaded, logits(load_adapter(llama, run.artifacts)))
    assert metrics["perplexity_after"] == metrics["perplexity_before"]
    for files in (run.artifacts, folder.files):
        code = (files / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
        code = code.split("```")[0].replace("path/to/this/folder", str(files))
        names: dict[str, Any] = {}
        exec(code.replace("path/to/tiny", str(llama)), names)  # noqa: S102 -- our own card
        assert torch.equal(logits(names["model"]), loaded)


def test_chat_reads_result_and_checkpoint_with_their_tokens(llama: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", llama, **LORA, **STEPS, **SAVED)
    options = {"new_tokens": NEW["model__new_tokens"]}
    expected = logits(load_adapter(llama, run.artifacts))
    newest = max(run.checkpoints.iterdir(), key=lambda path: int(path.name.split("-")[1]))
    asked = GenerationRequest(model=str(llama), ids=[3], stops=[], options=options)
    result = asked.model_copy(update={"adapter": str(run.artifacts)})
    saved = asked.model_copy(
        update={
            "weights": str(newest),
            "tokenizer": str(run.tokenizer),
            "lora": tiny.recipe(**LORA).adapter.model_dump(),
        }
    )
    cache = ModelCache()
    plain = asked.model_copy(update={"options": {}})
    with cache.model_for(plain) as (model, _tokenizer):
        before = logits(model)
    for request in (result, saved, result):
        with cache.model_for(request) as (model, tokenizer):
            torch.testing.assert_close(logits(model), expected, rtol=0, atol=0)
            assert len(tokenizer.encode("plus", add_special_tokens=False)) == 1
    with cache.model_for(plain) as (model, _tokenizer):
        assert torch.equal(logits(model), before)


@pytest.mark.parametrize("tied", [False, True])
def test_reference_has_the_new_rows_as_they_started(tmp_path: Path, *, tied: bool) -> None:
    """Before any step, the model and its reference agree, wherever it is scored."""
    config = small("tied llama" if tied else "llama")
    config.vocab_size = len(tiny.tokenizer())
    base = tiny.write_model(tmp_path / "base", config)
    curves = []
    for scores in ("adapter_off", "precomputed"):
        changes = LORA | STEPS | {"preference__reference": scores}
        run = test_preferences.train(tmp_path / scores, base, changes)
        assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
        assert tiny.metric_values(run, "eval_reward_margin")[0] == pytest.approx(0, abs=1e-6)
        curves.append(tiny.metric_values(run, "eval_loss"))
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0][-1] < curves[0][0]


def test_run_continues_the_rows_of_another(llama: Path, tmp_path: Path) -> None:
    parent = tiny.train(tmp_path / "parent", llama, **LORA)
    changes = LORA | {"adapter__continue_from": "run-1"}
    run = continue_run(parent, tiny.write_run(tmp_path / "run", llama, **changes))
    changes["model__new_tokens"] = "plus"
    lost = tiny.write_run(tmp_path / "lost", llama, **changes)
    failed = tiny.last_event(continue_run(parent, lost))

    first = tiny.metric_values(run, "eval_loss")[0]
    assert first == pytest.approx(tiny.metric_values(parent, "eval_loss")[-1], rel=1e-5)
    assert isinstance(failed, Failed)
    assert "trainable_token_indices" in failed.message


def test_classifier_reads_new_tokens(llama: Path, tmp_path: Path) -> None:
    run = test_classification.train(tmp_path / "run", llama, LORA)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    folder, _metrics = exported(run, "float32", "merged")
    code = (run.artifacts / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
    code = code.split("```")[0].replace("path/to/this/folder", str(run.artifacts))
    names: dict[str, Any] = {}
    exec(code.replace("path/to/tiny", str(llama)), names)  # noqa: S102 -- our own card
    merged = AutoModelForSequenceClassification.from_pretrained(folder.files)

    torch.testing.assert_close(logits(merged), logits(names["model"]), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["oft", "ia3"])
def test_other_adapters_are_refused(kind: str, llama: Path, tmp_path: Path) -> None:
    failed = tiny.last_event(tiny.train(tmp_path / "run", llama, **NEW, adapter__kind=kind))

    assert isinstance(failed, Failed)
    assert "cannot train the embeddings of new tokens alone" in failed.message
