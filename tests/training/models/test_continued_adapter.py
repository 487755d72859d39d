"""Runs that train on from the adapter of another run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from studio.protocols.events import Failed, PhaseChanged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.lora_variants import LORA_VARIANTS, VariantName
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.export.test_export import as_trained, exported, logits
from tests.training.runs import test_preferences, test_ratings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LORA: dict[str, Any] = {"adapter__kind": "lora", "adapter__r": 4, "adapter__lora_alpha": 8}
DOUBLED: dict[str, Any] = LORA | {"adapter__r": 8, "adapter__lora_alpha": 16}
CONTINUES: dict[str, Any] = {"adapter__continue_from": "run-1"}
WRITERS = {
    "sft": lambda root, model, changes: tiny.write_run(root, model, **changes),
    "dpo": test_preferences.write_run,
    "kto": test_ratings.write_run,
}


def continue_run(parent: RunDir, run: RunDir) -> RunDir:
    """Train a run from the adapter of another."""
    spec = JobSpec.read(run)
    spec = spec.model_copy(update={"adapter": parent.artifacts})
    run.job.write_text(spec.model_dump_json(), encoding="utf-8")
    execute_run(run.root, StopHandler())
    return run


def trained_parent(root: Path, model: Path, **changes: Any) -> RunDir:  # noqa: ANN401 -- settings
    return tiny.train(root, model, **(LORA | {"optimisation__max_steps": 12} | changes))


@pytest.mark.smoke
@pytest.mark.parametrize("variant", [one for one in LORA_VARIANTS if one != "loftq"])
def test_run_starts_where_its_parent_ended(
    variant: VariantName, model: Path, tmp_path: Path
) -> None:
    parent = trained_parent(tmp_path / "parent", model, adapter__variant=variant)
    is_whole = LORA_VARIANTS[variant].changes_base  # Saved as plain LoRA of twice the rank.
    shape = DOUBLED if is_whole else LORA | {"adapter__variant": variant}
    steps = {"optimisation__max_steps": 12}
    run = continue_run(
        parent, tiny.write_run(tmp_path / "run", model, **shape, **CONTINUES, **steps)
    )

    losses = tiny.metric_values(run, "eval_loss")
    assert losses[0] == pytest.approx(tiny.metric_values(parent, "eval_loss")[-1], rel=1e-5)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("extra", ["norms", "output", "embeddings"])
def test_parts_trained_in_full_are_continued_too(extra: str, model: Path, tmp_path: Path) -> None:
    changes = LORA | {"adapter__extra_modules": extra}
    parent = trained_parent(tmp_path / "parent", model, **changes)
    run = continue_run(parent, tiny.write_run(tmp_path / "run", model, **changes, **CONTINUES))

    first_loss = tiny.metric_values(run, "eval_loss")[0]
    assert first_loss == pytest.approx(tiny.metric_values(parent, "eval_loss")[-1], rel=1e-5)


def test_saved_adapter_is_the_whole_chain(model: Path, tmp_path: Path) -> None:
    parent = trained_parent(tmp_path / "parent", model)
    run = continue_run(parent, tiny.write_run(tmp_path / "run", model, **LORA, **CONTINUES))
    folder, metrics = exported(run, "float32", "merged")
    merged = AutoModelForCausalLM.from_pretrained(folder.files)

    torch.testing.assert_close(logits(merged), as_trained(run), rtol=1e-4, atol=2e-5)
    last_loss = tiny.metric_values(run, "eval_loss")[-1]
    assert metrics["loss_before"] == pytest.approx(last_loss, rel=1e-5)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_parent_is_the_reference(method: str, model: Path, tmp_path: Path) -> None:
    """Rewards start at 0: they compare with the parent, not with the base model."""
    parent = trained_parent(tmp_path / "parent", model)
    changes = LORA | CONTINUES | {"optimisation__max_steps": 12}
    run = continue_run(parent, WRITERS[method](tmp_path / "run", model, changes))

    key = "eval_reward_margin" if method == "dpo" else "eval_rating_margin"
    assert tiny.metric_values(run, key)[0] == pytest.approx(0, abs=1e-4)
    assert tiny.metric_values(run, key.removeprefix("eval_"))[-1] > 0.01
    phases = [event.name for event in tiny.events_of(run, PhaseChanged)]
    assert "scoring the reference" in phases


@pytest.mark.parametrize("method", WRITERS)
def test_resumed_run_equals_uninterrupted_run(method: str, model: Path, tmp_path: Path) -> None:
    parent = trained_parent(tmp_path / "parent", model)
    changes = LORA | CONTINUES | STEPS | SAVED | {"precision": "bf16"}
    whole = continue_run(parent, WRITERS[method](tmp_path / "whole", model, changes))
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adapter__r": 8}, "has r 4, this one 8"),
        ({"adapter__lora_alpha": 4}, "has lora_alpha 8, this one 4"),
        ({"adapter__variant": "dora"}, "has use_dora False, this one True"),
        ({"adapter__target_modules": "mlp"}, "weights differ in name or size"),
        ({"adapter__last_layers": 1}, "weights differ in name or size"),
    ],
)
def test_adapter_that_does_not_fit_is_refused(
    changes: dict[str, Any], words: str, model: Path, tmp_path: Path
) -> None:
    parent = trained_parent(tmp_path / "parent", model)
    run = tiny.write_run(tmp_path / "run", model, **(LORA | CONTINUES | changes))
    failed = tiny.last_event(continue_run(parent, run))

    assert isinstance(failed, Failed)
    assert (failed.code, words in failed.message) == ("conflict", True), failed.message


def test_missing_adapter_is_refused(model: Path, tmp_path: Path) -> None:
    parent = trained_parent(tmp_path / "parent", model)
    shutil.rmtree(parent.artifacts)
    run = tiny.write_run(tmp_path / "run", model, **LORA, **CONTINUES)
    failed = tiny.last_event(continue_run(parent, run))

    assert isinstance(failed, Failed)
    assert (failed.code, failed.message) == (
        "model_not_found",
        "The adapter that this run continues from no longer exists.",
    )
