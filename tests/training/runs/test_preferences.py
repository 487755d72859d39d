"""Preference learning: real runs on pairs of answers, from recipe to artifacts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from studio.methods.dpo import DPORecipe
from studio.methods.dpo.trainer import PairTrainer, build, tokenise
from studio.protocols.events import AlarmRaised, Failed, Finished, PhaseChanged, Sampled, Started
from studio.protocols.run_dir import JobSpec, RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.execution import execute_run
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training import reference_trainer
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


def pair(one: int, two: int) -> Row:
    """Return a sum with the right answer, and one that is too long and wrong."""
    question = [{"role": "user", "content": f"What is {one} plus {two}?"}]
    right, wrong = f"{one} plus {two} is {one + two}.", f"{one} plus {two} is many, I guess."
    return {
        "messages": question,
        "chosen": [{"role": "assistant", "content": right}],
        "rejected": [{"role": "assistant", "content": wrong}],
    }


CASES: dict[str, Changes] = {"full": {}, "lora": LORA}

PAIRS = [pair(one, two) for one in range(6) for two in range(6)]


runs = tiny.Runs(PAIRS, method="dpo")
write_run, train = runs.write, runs.train


def make_trainer(run: RunDir) -> PairTrainer:
    recipe = load_recipe(run)
    assert isinstance(recipe, DPORecipe)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None, tokenise=tokenise)
    trainer = build(recipe, job)
    trainer.score_reference(lambda _phase: None)
    return trainer


@pytest.mark.parametrize(
    "adapter",
    [
        {},
        LORA,
        {"preference__tail_weight": 0.2},
        {"preference__confidence_weighted": True},
        {"preference__divergence": "js"},
    ],
    ids=["full", "lora", "length", "confidence", "js"],
)
def test_model_learns_to_prefer_the_chosen_answer(
    adapter: Changes, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, adapter | {"optimisation__max_steps": 24})

    shares = tiny.metric_values(run, "eval_preferred_share")
    margins = tiny.metric_values(run, "eval_reward_margin")
    assert isinstance(tiny.last_event(run), Finished)
    assert margins[0] == pytest.approx(0, abs=1e-4)
    assert (shares[-1], margins[-1] > 0.5) == (1.0, True)


def test_loss_begins_at_log_2(model: Path, tmp_path: Path) -> None:
    """At the start the model is its reference: every margin is zero."""
    run = train(tmp_path / "run", model)

    assert tiny.metric_values(run, "eval_loss")[0] == pytest.approx(0.693147, abs=1e-4)


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "simpo", "orpo"])
def test_precomputed_reference_equals_adapter_off(loss: str, model: Path, tmp_path: Path) -> None:
    choices = ["adapter_off", "precomputed"] if loss in ("sigmoid", "ipo") else ["automatic"]
    curves = []
    for reference in choices:
        run = train(
            tmp_path / reference,
            model,
            LORA | {"preference__loss_type": loss, "preference__reference": reference},
        )
        curves.append(tiny.metric_values(run, "loss"))

    assert all(curve == pytest.approx(curves[0], rel=1e-5) for curve in curves)
    assert len(curves[0]) == 3


def test_only_precomputed_reference_has_a_phase(model: Path, tmp_path: Path) -> None:
    phases = {
        name: [
            event.name
            for event in tiny.events_of(train(tmp_path / name, model, changes), PhaseChanged)
        ]
        for name, changes in CASES.items()
    }

    assert [name for name, found in phases.items() if "scoring the reference" in found] == ["full"]


def test_batch_size_and_accumulation_do_not_change_the_loss(model: Path, tmp_path: Path) -> None:
    sizes = ((4, 1), (2, 2), (1, 4))
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                model,
                {
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                },
            ),
            "loss",
        )
        for size, times in sizes
    ]

    assert all(curve == pytest.approx(curves[0], rel=1e-4) for curve in curves)


def test_prompt_is_not_trained_on(model: Path, tmp_path: Path) -> None:
    """Only answer tokens are scored, also after an earlier answer in the prompt."""
    earlier = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there."}]
    rows = [row | {"messages": earlier + row["messages"]} for row in PAIRS]
    runs = [
        write_run(tmp_path / name, model, rows=those) for name, those in (("a", PAIRS), ("b", rows))
    ]
    counts = [
        [int((row["labels"] != -100).sum()) for row in make_trainer(run).train_dataset]
        for run in runs
    ]

    assert counts[0] == counts[1]


def test_pairs_cut_equal_are_dropped_and_counted(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model)
    job = TrainingJob.prepare(load_recipe(run), run, lambda _phase: None, tokenise=tokenise)
    shared = job.train.longest - 12
    cut = write_run(tmp_path / "cut", model, {"data__max_length": shared})
    few = TrainingJob.prepare(load_recipe(cut), cut, lambda _phase: None, tokenise=tokenise)

    assert 0 <= few.train.cut_off <= few.train.dropped
    assert few.train.longest <= shared


@pytest.mark.parametrize(
    ("rows", "changes", "code", "message"),
    [
        (tiny.rows(), {}, "bad_row", "Row 1 of the training data has no pair of answers"),
        (PAIRS, {"data__max_length": 16}, "sequence_too_long", "before their answers differ"),
        (
            [row | {"rejected": row["chosen"]} for row in PAIRS],
            {},
            "all_labels_masked",
            "the two answers are equal",
        ),
        (PAIRS, {"data__packing": True}, "conflict", "Answers that are compared cannot be packed"),
        (PAIRS, {"preference__loss_type": "exo_pair"}, "conflict", "EXO is undefined"),
        (
            PAIRS,
            {"preference__loss_type": "apo_zero", "preference__divergence": "js"},
            "conflict",
            "defined for reverse KL only",
        ),
        (
            PAIRS,
            {"preference__loss_type": "aot", "preference__confidence_weighted": True},
            "conflict",
            "AOT compares sorted batches",
        ),
        (PAIRS, LORA | {"adapter__lora_dropout": 0.1}, "conflict", "Dropout makes the model"),
        (PAIRS, {"preference__reference": "adapter_off"}, "conflict", "no adapter to turn off"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    rows: list[Row],
    changes: Changes,
    code: str,
    message: str,
    model: Path,
    tmp_path: Path,
) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, changes, rows))

    assert isinstance(failed, Failed)
    assert (failed.code, message in failed.message) == (code, True)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16_kahan", "fp32_bf16_matmul"])
def test_margin_begins_near_zero_in_every_precision(
    precision: str, model: Path, tmp_path: Path
) -> None:
    """The reference is scored in the precision that trains."""
    run = train(tmp_path / "run", model, {"precision": precision})

    assert isinstance(tiny.last_event(run), Finished)
    assert abs(tiny.metric_values(run, "eval_reward_margin")[0]) < 0.02


@pytest.mark.parametrize(
    ("changes", "is_rounded"),
    [
        ({"precision": "fp32"}, False),
        ({"precision": "bf16"}, True),
        ({"precision": "bf16", **LORA}, True),
        ({"precision": "bf16", **LORA, "adapter__base_dtype": "bfloat16"}, True),
        ({"precision": "fp16", "preference__reference": "precomputed"}, True),
        ({"precision": "bf16_kahan"}, True),
        ({"precision": "bf16", "preference__loss_type": "simpo"}, True),
    ],
    ids=["fp32", "bf16", "lora", "frozen bf16", "fp16", "bf16 weights", "no reference"],
)
def test_rounding_error_of_rewards_is_measured(
    changes: Changes, model: Path, tmp_path: Path, *, is_rounded: bool
) -> None:
    run = train(tmp_path / "run", model, changes | {"optimisation__max_steps": 8})

    errors = tiny.metric_values(run, "eval_reward_rounding")
    assert isinstance(tiny.last_event(run), Finished)
    assert bool(errors) == is_rounded
    assert all(0 < error < 0.1 for error in errors[1:])


@pytest.mark.parametrize(
    ("rate", "precision", "codes"),
    [(1e-9, "bf16", ["rewards_rounded"]), (1e-2, "bf16", []), (1e-9, "fp32", [])],
)
def test_margin_within_its_rounding_error_raises_alarm(
    rate: float, precision: str, codes: list[str], model: Path, tmp_path: Path
) -> None:
    changes = {"precision": precision, "optimisation__learning_rate": rate}
    run = train(tmp_path / "run", model, changes | {"optimisation__max_steps": 8})

    assert [alarm.code for alarm in tiny.events_of(run, AlarmRaised)] == codes


def test_measuring_the_rounding_error_changes_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"precision": "bf16", **LORA}
    measured = train(tmp_path / "measured", model, changes)
    monkeypatch.setattr(reference_trainer, "_ROUNDING", ())
    plain = train(tmp_path / "plain", model, changes)

    for key in ("loss", "eval_loss", "grad_norm"):
        assert tiny.metric_values(measured, key) == tiny.metric_values(plain, key)
    assert not tiny.metric_values(plain, "eval_reward_rounding")


def test_dropout_is_off(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(write_run(tmp_path / "run", model))

    assert {m.p for m in trainer.model.modules() if isinstance(m, torch.nn.Dropout)} <= {0}


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16_dual"},
        LORA | {"precision": "bf16"},
        LORA | {"preference__reference": "precomputed"},
        {"preference__loss_type": "orpo", "preference__sft_weight": 1.0},
        LORA | {"preference__confidence_weighted": True, "preference__tail_weight": 0.5},
    ],
    ids=["full", "adapter off", "precomputed", "no reference", "weighted"],
)
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    """Also where the reference is the model before training, which the checkpoint is not."""
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def dry_run(run: RunDir, folder: TaskDir) -> dict[str, Any]:
    folder.files.mkdir(parents=True)
    params = {"recipe": load_recipe(run).model_dump(mode="json"), "job": run.job.read_text()}
    return measure(folder, params, lambda _phase, _share: None)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_dry_run_reads_two_sequences_per_pair(
    adapter: Changes, model: Path, tmp_path: Path
) -> None:
    """A pair needs the activations of two conversations as long as its longer one."""
    run = write_run(tmp_path / "run", model, adapter)
    found = dry_run(run, TaskDir(tmp_path / "task"))
    single = tiny.write_run(tmp_path / "single", model, **adapter)
    rows = [{"messages": row["messages"] + row["rejected"]} for row in PAIRS]
    tiny.write_rows(JobSpec.model_validate_json(single.job.read_text("utf-8")).train, rows)
    one = dry_run(single, TaskDir(tmp_path / "task of one"))

    assert found["longest_example"] == one["longest_example"]
    assert found["at_peak"]["activations"] == pytest.approx(
        2 * one["at_peak"]["activations"], rel=0.1
    )


def test_time_limit_counts_both_answers(model: Path, tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        model,
        {"optimisation__max_steps": None, "optimisation__max_minutes": 0.2},
    )

    assert isinstance(tiny.last_event(run), Finished)
    assert tiny.events_of(run, Started)[0].total_steps >= 1


def test_card_says_what_was_done(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {"samples__prompts": 2})

    card = (run.artifacts / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---")[1])
    assert front["tags"][1:3] == ["dpo", "preference-optimization"]
    assert "aligned by preferences" in card


def test_answers_are_not_judged_by_the_chosen_one(model: Path, tmp_path: Path) -> None:
    """The chosen answer is better than the rejected one, and not the only right one."""
    run = train(tmp_path / "run", model, {"samples__prompts": 2})

    assert {event.reference for event in tiny.events_of(run, Sampled)} == {""}
