"""Runs from recipe to artifacts, in this process."""

import json
import math
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio import run_manifest
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import (
    Failed,
    Finished,
    MetricsLogged,
    PhaseChanged,
    Sampled,
    Started,
    Stopped,
)
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.run_manifest import Manifest
from studio.runner.execution import execute_run
from studio.training.data import tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow, split_rows
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(scope="module")
def full(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    root = tmp_path_factory.mktemp("full") / "run"
    return tiny.train(root, model, optimisation__max_steps=4, samples__prompts=2)


@pytest.fixture(scope="module")
def lora(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return tiny.train(tmp_path_factory.mktemp("lora") / "run", model, adapter__kind="lora")


def validation(run: RunDir) -> tokenisation.Examples:
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    rows = split_rows([TrainingRow(messages=row["messages"]) for row in tiny.rows()], 0.2, seed=42)[
        1
    ]
    return tokenisation.tokenise(rows, ChatTemplate(reader), reader, max_length=1024)


def test_run_reports_phases_in_order(full: RunDir) -> None:
    between = len({one.step for one in tiny.events_of(full, Sampled) if one.stage == "during"})

    assert [event.name for event in tiny.events_of(full, PhaseChanged)] == [
        "loading",
        "tokenising",
        "answering",
        *("training", "answering") * (between + 1),
        "saving",
    ]
    assert isinstance(tiny.last_event(full), Finished)


def test_logged_step_contains_every_metric(full: RunDir) -> None:
    first = tiny.events_of(full, MetricsLogged)[1]

    assert sorted(first.metrics) == [
        "activation_max",
        "grad_norm",
        "grad_underflow_share",
        "learning_rate",
        "logit_max",
        "loss",
        "lost_update_share",
        "mean_token_accuracy",
        "nonfinite_grads",
        "nonfinite_losses",
        "peak_memory_bytes",
        "step_seconds",
        "tokens_per_second",
        "update_ratio",
    ]
    assert (first.step, first.seconds > 0, first.tokens > 0) == (1, True, True)


@pytest.mark.smoke
def test_token_count_equals_tokens_of_all_epochs(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run",
        model,
        optimisation__max_steps=None,
        optimisation__num_train_epochs=2,
        evaluation__logging_steps=3,
    )

    started, finished = tiny.events_of(run, Started)[0], tiny.events_of(run, Finished)[0]
    assert finished.metrics["tokens"] == 2 * started.resolved["train_tokens"]


def test_last_step_is_always_validated(full: RunDir) -> None:
    measured = [e.step for e in tiny.events_of(full, MetricsLogged) if "eval_loss" in e.metrics]

    assert measured == [0, 1, 2, 3, 4]
    assert (
        tiny.events_of(full, Finished)[0].metrics["eval_loss"]
        == tiny.metric_values(full, "eval_loss")[-1]
    )


def test_prompts_are_sampled_before_during_and_after_training(full: RunDir) -> None:
    samples = tiny.events_of(full, Sampled)

    assert [(one.stage, one.step, one.position) for one in samples] == [
        (stage, step, position)
        for stage, step in (
            *(("before", 0), ("during", 1), ("during", 2), ("during", 3)),
            ("after", 4),
        )
        for position in (0, 1)
    ]
    assert samples[0].prompt == samples[2].prompt == validation(full).rows[0].messages[0]["content"]


@pytest.mark.smoke
def test_same_seed_gives_same_loss_curve(model: Path, tmp_path: Path) -> None:
    knobs = {"adapter__kind": "lora", "adapter__lora_dropout": 0.2}
    one = tiny.train(tmp_path / "one", model, **knobs)
    same = tiny.train(tmp_path / "same", model, **knobs)
    other = tiny.train(tmp_path / "other", model, **knobs, optimisation__seed=1)

    assert tiny.metric_values(one, "loss") == tiny.metric_values(same, "loss")
    assert tiny.metric_values(one, "loss") != tiny.metric_values(other, "loss")


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16_pure"])
def test_sampling_does_not_change_training(
    precision: str, kind: str, model: Path, tmp_path: Path
) -> None:
    knobs: dict[str, object] = {"precision": precision, "adapter__kind": kind}
    knobs |= {"adapter__lora_dropout": 0.2} if kind == "lora" else {}
    without = tiny.train(tmp_path / "without", model, **knobs)
    with_samples = tiny.train(tmp_path / "with", model, **knobs, samples__prompts=3)

    assert tiny.metric_values(without, "loss") == tiny.metric_values(with_samples, "loss")


def test_accumulated_batches_equal_one_large_batch(model: Path, tmp_path: Path) -> None:
    large = tiny.train(tmp_path / "large", model)
    parts = tiny.train(
        tmp_path / "parts",
        model,
        optimisation__per_device_train_batch_size=1,
        optimisation__gradient_accumulation_steps=4,
    )

    assert tiny.metric_values(parts, "loss") == pytest.approx(
        tiny.metric_values(large, "loss"), rel=1e-4
    )


def test_reloaded_full_model_has_same_loss(full: RunDir) -> None:
    examples = validation(full)
    model = AutoModelForCausalLM.from_pretrained(full.artifacts, dtype=torch.float32)

    loss = tiny.loss_of(model, examples, pad_token_id=0)

    assert loss == pytest.approx(tiny.metric_values(full, "eval_loss")[-1], rel=1e-4)


@pytest.mark.smoke
def test_reloaded_adapter_has_same_loss(model: Path, lora: RunDir) -> None:
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    loss = tiny.loss_of(PeftModel.from_pretrained(base, lora.artifacts), validation(lora), 0)

    assert loss == pytest.approx(tiny.metric_values(lora, "eval_loss")[-1], rel=1e-4)


@pytest.mark.smoke
def test_artifacts_are_exactly_expected_files(full: RunDir, lora: RunDir) -> None:
    records = {"README.md", "recipe.yaml", "samples.json", "metrics.json", "manifest.json"}
    reader = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    weights = {"model.safetensors", "config.json", "generation_config.json"}
    adapter = {"adapter_model.safetensors", "adapter_config.json"}

    assert {path.name for path in full.artifacts.iterdir()} == records | reader | weights
    assert {path.name for path in lora.artifacts.iterdir()} == records | reader | adapter
    assert not full.checkpoints.exists()


def test_model_card_contains_no_local_path(full: RunDir) -> None:
    card = (full.artifacts / "README.md").read_text(encoding="utf-8")

    assert str(full.root.parent.parent) not in card
    assert "| eval loss |" in card


def test_metrics_are_written_to_json(full: RunDir) -> None:
    kept = json.loads((full.artifacts / "metrics.json").read_text(encoding="utf-8"))

    assert kept["eval_loss"] == tiny.events_of(full, Finished)[0].metrics["eval_loss"]
    assert kept["resolved"]["train_rows"] == 29


def test_manifest_lists_artifacts_with_hashes(full: RunDir) -> None:
    kept = Manifest.model_validate_json(full.manifest.read_text(encoding="utf-8"))

    others = sorted(path for path in full.artifacts.iterdir() if path != full.manifest)
    assert [(one.name, one.bytes, one.sha256) for one in kept.artifacts] == [
        (path.name, path.stat().st_size, run_manifest.file_sha256(path)) for path in others
    ]


def test_manifest_records_everything_to_reproduce_run(full: RunDir, model: Path) -> None:
    kept = Manifest.model_validate_json(full.manifest.read_text(encoding="utf-8"))

    recipe = RECIPE_ADAPTER.validate_python(kept.recipe)
    assert recipe == RECIPE_ADAPTER.validate_python(
        yaml.load(full.recipe.read_text()), strict=False
    )
    weights = {"model.safetensors": run_manifest.file_sha256(model / "model.safetensors")}
    assert (kept.is_finished, kept.base_model.sha256) == (True, weights)
    assert (kept.seed, kept.metrics) == (
        recipe.optimisation.seed,
        tiny.events_of(full, Finished)[0].metrics,
    )
    assert set(kept.versions) >= {"mantissa-studio", "python", "torch", "transformers"}


def test_manifest_records_requested_planned_and_audited_precision(full: RunDir) -> None:
    kept = Manifest.model_validate_json(full.manifest.read_text(encoding="utf-8")).precision

    resolved = tiny.events_of(full, Started)[0].resolved
    assert (kept.resolved, kept.audited) == (resolved["plan"], resolved["audit"])
    assert kept.requested == "fp32"


def test_early_stopping_keeps_best_weights(model: Path, tmp_path: Path) -> None:
    run = tiny.train(
        tmp_path / "run",
        model,
        optimisation__learning_rate=0.3,
        optimisation__max_steps=30,
        evaluation__eval_steps=1,
        early_stopping__early_stopping_patience=2,
    )
    measured = tiny.metric_values(run, "eval_loss")[1:]
    finished = tiny.events_of(run, Finished)[0].metrics

    kept = AutoModelForCausalLM.from_pretrained(run.artifacts, dtype=torch.float32)

    assert len(measured) < 30
    assert finished["eval_loss"] == finished["best_eval_loss"] == min(measured)
    assert tiny.loss_of(kept, validation(run), 0) == pytest.approx(min(measured), rel=1e-4)
    assert not run.checkpoints.exists()


def test_nan_loss_is_recorded_and_ends_run(model: Path, tmp_path: Path) -> None:
    broken = AutoModelForCausalLM.from_pretrained(model)
    broken.lm_head.weight.data[:] = 3e38  # finite, as the check before the start wants it
    broken.save_pretrained(tmp_path / "broken")
    tiny.tokenizer().save_pretrained(tmp_path / "broken")

    run = tiny.train(tmp_path / "run", tmp_path / "broken", optimisation__max_steps=30)

    assert [math.isnan(loss) for loss in tiny.metric_values(run, "loss")] == [True] * 10
    assert tiny.events_of(run, Failed)[0].code == "non_finite"
    assert not run.artifacts.exists()


def test_run_fails_when_all_answers_are_truncated(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, data__max_length=16)

    assert execute_run(run.root, StopHandler()) == 1
    assert tiny.events_of(run, Failed)[0].code == "sequence_too_long"


def test_run_cancelled_before_start_stops_at_once(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    stop = StopHandler()
    stop.requested = "cancel"

    assert execute_run(run.root, stop) == 0
    assert [event.kind for event in run.events.read()[0]] == ["stopped"]
    assert tiny.events_of(run, Stopped)[0].step == 0
