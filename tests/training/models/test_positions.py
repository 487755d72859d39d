"""Rotary positions stretched for longer texts: in real runs, saved, resumed and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    PreTrainedConfig,
)

from studio.protocols.events import Failed, Finished
from studio.protocols.inference_service import GenerationRequest
from studio.recipe.model_options import RopeType
from studio.runner.execution import execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.training.models import loader, positions
from studio.training.stop_handler import StopHandler
from studio.weights import model_facts
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import exported, logits
from tests.training.memory import tiny_configs
from tests.training.runs import test_classification

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TYPES: list[RopeType] = ["linear", "dynamic", "yarn", "llama3"]
LONG = torch.arange(300).remainder(300)[None] + 3
"""More tokens than the model was made for."""


def settings(rope_type: RopeType) -> dict[str, Any]:
    return {"model__rope_type": rope_type, "model__rope_factor": 4.0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rope_type", TYPES)
def test_run_saves_a_model_that_computes_as_it_was_trained(
    rope_type: RopeType, precision: str, model: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model, **settings(rope_type), precision=precision)
    saved = json.loads((run.artifacts / "config.json").read_text(encoding="utf-8"))
    folder, _metrics = exported(run, "float32", "full")
    trained, plain = map(AutoModelForCausalLM.from_pretrained, (run.artifacts, folder.files))

    assert isinstance(tiny.last_event(run), Finished)
    assert saved["rope_parameters"].items() >= {"rope_type": rope_type, "factor": 4.0}.items()
    assert saved["max_position_embeddings"] == (128 if rope_type == "dynamic" else 512)
    torch.testing.assert_close(logits(plain), logits(trained), rtol=0, atol=0)
    assert tiny.metric_values(run, "eval_loss")[-1] < tiny.metric_values(run, "eval_loss")[0]


@pytest.mark.parametrize("rope_type", TYPES)
def test_positions_are_those_of_upstream(rope_type: RopeType, model: Path) -> None:
    """Dynamic ones change nothing up to the original length; linear ones everything."""
    config = loader.load_config(str(model))
    positions.stretch(config, rope_type, 4.0)
    stretched = loader.load_model(str(model), config, "float32")
    original = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa")

    short = torch.equal(logits(stretched), logits(original))
    with torch.no_grad():
        long = [one.eval()(LONG).logits for one in (stretched, original)]
    assert short == (rope_type == "dynamic")
    assert not torch.equal(*long)


@pytest.mark.parametrize("rope_type", TYPES)
def test_resumed_run_equals_uninterrupted_run(
    rope_type: RopeType, model: Path, tmp_path: Path
) -> None:
    whole = tiny.train(tmp_path / "whole", model, **STEPS, **SAVED, **settings(rope_type))
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def stretched_llama() -> PreTrainedConfig:
    config = tiny.llama()
    positions.stretch(config, "yarn", 2.0)
    return config


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        (GPT2Config(n_embd=32, n_layer=2, n_head=2), "none", "have no rotary positions"),
        (stretched_llama(), "yarn", "are stretched already (yarn)"),
        (
            tiny_configs.config("gemma3_text", words=320, hidden=32, inner=64, layers=2),
            "by_layer",
            "have different positions in different layers",
        ),
    ],
    ids=["gpt2", "stretched", "gemma3"],
)
def test_other_positions_are_refused_by_files_and_by_runs(
    config: PreTrainedConfig, kind: str, message: str, tmp_path: Path
) -> None:
    config.vocab_size = 320
    base = tiny.write_model(tmp_path / "base", config)
    failed = tiny.last_event(tiny.train(tmp_path / "run", base, **settings("linear")))

    assert model_facts.read(base).rope == kind
    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == ("conflict", True)


LORA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4}


@pytest.mark.smoke
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rope_type", TYPES)
def test_adapter_carries_the_positions_it_was_trained_with(
    rope_type: RopeType, precision: str, model: Path, tmp_path: Path
) -> None:
    """On a base as it was made, it would compute something else."""
    changes = LORA | settings(rope_type) | {"precision": precision}
    run = tiny.train(tmp_path / "run", model, **changes)
    assert isinstance(tiny.last_event(run), Finished)
    merged, alone = (exported(run, "float32", kind)[0].files for kind in ("merged", "adapter"))
    plain = AutoModelForCausalLM.from_pretrained(merged)
    expected = long_logits(plain)

    for folder in (run.artifacts, alone):
        assert AutoConfig.from_pretrained(folder).rope_parameters["rope_type"] == rope_type
        loaded = run_card_code(folder, model)
        torch.testing.assert_close(long_logits(loaded), expected, rtol=1e-4, atol=2e-5)
    original = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    unstretched = PeftModel.from_pretrained(original, run.artifacts)
    assert (long_logits(unstretched) - expected).abs().max() > 1e-3


def long_logits(model: Any) -> torch.Tensor:  # noqa: ANN401 -- any model of upstream
    with torch.no_grad():
        found: torch.Tensor = model.eval()(LONG).logits.float()
    return found


def run_card_code(folder: Path, base: Path) -> Any:  # noqa: ANN401 -- a model of peft
    """Load a model as its card says."""
    code = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1]
    code = code.split("```")[0].replace("path/to/this/folder", str(folder))
    names: dict[str, Any] = {}
    exec(code.replace("path/to/tiny", str(base)), names)  # noqa: S102 -- our own card
    return names["model"]


@pytest.mark.parametrize("rope_type", TYPES)
def test_resumed_run_of_an_adapter_equals_uninterrupted_run(
    rope_type: RopeType, model: Path, tmp_path: Path
) -> None:
    whole = tiny.train(tmp_path / "whole", model, **LORA, **STEPS, **SAVED, **settings(rope_type))
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("base_dtype", ["native", "bfloat16", "nf4"])
def test_chat_stretches_the_base_of_an_adapter(
    base_dtype: str, model: Path, tmp_path: Path
) -> None:
    changes = LORA | settings("linear") | {"adapter__base_dtype": base_dtype, "precision": "bf16"}
    run = tiny.train(tmp_path / "run", model, **changes, **STEPS, **SAVED)
    merged = exported(run, "float32", "merged")[0].files
    expected = long_logits(AutoModelForCausalLM.from_pretrained(merged))
    newest = max(run.checkpoints.iterdir(), key=lambda path: int(path.name.split("-")[1]))
    recipe = tiny.recipe(**changes)
    asked = GenerationRequest(
        model=str(model),
        precision="bf16",
        base_dtype=base_dtype,
        options=recipe.model.model_dump(),
        ids=[3],
        stops=[],
    )
    result = asked.model_copy(update={"adapter": str(run.artifacts)})
    saved = {"weights": str(newest), "lora": recipe.adapter.model_dump()}
    plain = result.model_copy(update={"options": {}})
    cache, distances = ModelCache(), []
    for request in (plain, result, asked.model_copy(update=saved), plain):
        with cache.model_for(request) as (answering, _tokenizer):
            distances.append(float((long_logits(answering) - expected).abs().max()))
    assert distances[0] == distances[3]
    # Products with 4-bit weights differ from those with the same weights in float32.
    assert max(distances[1:3]) < (distances[0] / 2 if base_dtype == "nf4" else 1e-4)


def test_classifier_keeps_its_positions(model: Path, tmp_path: Path) -> None:
    run = test_classification.train(tmp_path / "run", model, LORA | settings("yarn"))
    assert isinstance(tiny.last_event(run), Finished)
    merged = exported(run, "float32", "merged")[0].files
    plain = AutoModelForSequenceClassification.from_pretrained(merged)

    expected = logits(plain)
    torch.testing.assert_close(
        logits(run_card_code(run.artifacts, model)), expected, rtol=1e-4, atol=2e-5
    )
