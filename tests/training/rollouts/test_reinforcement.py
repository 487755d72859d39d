"""Reinforcement learning: real runs on answers that the model writes, from recipe to artifacts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from studio import starter
from studio.methods.grpo import GRPORecipe
from studio.methods.grpo.trainer import build, tokenise
from studio.protocols.events import AlarmRaised, Failed, Finished, PhaseChanged
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.precision import PRECISIONS
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED
from tests.training.tiny import LORA, Changes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

METHODS = ("grpo", "rloo")


def python_grader(source: str) -> dict[str, str]:
    return {"type": "python", "name": "program", "source": source}


LETTERS = python_grader(
    "def grade(sample, item):\n"
    "    text = sample['output_text']\n"
    "    return sum('a' <= c <= 'z' for c in text) / len(text) if text else 0.0\n"
)
"""A score that a random model gets some of, and that can be learned in seconds."""

SMALL: Changes = {
    "reward__grader": LETTERS,
    "rollouts__answers_per_prompt": 4,
    "rollouts__max_new_tokens": 8,
    "rollouts__validation_prompts": 4,
    "rollouts__validation_answers": 4,
    "optimisation__per_device_train_batch_size": 2,
    "optimisation__gradient_accumulation_steps": 2,
    "optimisation__learning_rate": 0.01,
    "optimisation__lr_scheduler_type": "constant",
    "data__max_length": 64,
}


def train(root: Path, model: Path, changes: Changes, /, **more: Any) -> RunDir:  # noqa: ANN401 -- settings
    return tiny.train(root, model, **{"method": "grpo"} | SMALL | changes | more)


def make_trainer(run: RunDir) -> Any:  # noqa: ANN401 -- upstream is untyped
    recipe = load_recipe(run)
    assert isinstance(recipe, GRPORecipe)
    job = TrainingJob.prepare(recipe, run, lambda _phase: None, tokenise=tokenise)
    return build(recipe, job)


def records(run: RunDir, stage: str = "training") -> list[dict[str, Any]]:
    lines = run.rollouts.read_text(encoding="utf-8").splitlines()
    return [record for line in lines if (record := json.loads(line))["stage"] == stage]


@pytest.mark.parametrize("method", METHODS)
def test_reward_rises(method: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {}, method=method, optimisation__max_steps=30)

    rewards = tiny.metric_values(run, "eval_reward")
    assert isinstance(tiny.last_event(run), Finished)
    assert rewards[-1] > rewards[0] + 0.3


@pytest.mark.parametrize("method", METHODS)
def test_adapter_of_a_trained_model_learns_to_be_brief(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "starter"
    folder.mkdir()
    starter.write_model(folder)
    brief = python_grader(
        "def grade(sample, item):\n    return 1 / (1 + len(sample['output_text']))\n"
    )
    changes = LORA | {"reward__grader": brief, "optimisation__learning_rate": 0.005}
    run = train(tmp_path / "run", folder, changes, method=method, optimisation__max_steps=30)

    rewards = tiny.metric_values(run, "eval_reward")
    assert isinstance(tiny.last_event(run), Finished)
    assert rewards[-1] > rewards[0] + 0.3


@pytest.mark.parametrize(
    ("changes", "raises"),
    [
        ({"policy__loss_type": "grpo"}, 0.3),
        ({"policy__loss_type": "dr_grpo", "policy__scale_rewards": "none"}, 0.05),
        ({"policy__loss_type": "bnpo"}, 0.3),
        ({"policy__mask_truncated": True, "rollouts__max_new_tokens": 24}, -0.1),
        (
            {
                "policy__loss_type": "grpo",
                "policy__importance_level": "sequence",
                "rollouts__steps_per_generation": 2,
            },
            0.3,
        ),
        (
            {
                "policy__loss_type": "cispo",
                "policy__epsilon_high": 5.0,
                "rollouts__steps_per_generation": 2,
            },
            0.3,
        ),
        ({"policy__beta": 0.01}, 0.3),
    ],
    ids=["grpo", "dr_grpo", "bnpo", "masked", "gspo", "cispo", "beta"],
)
def test_variants_raise_the_reward(
    changes: Changes, raises: float, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, changes, optimisation__max_steps=30)

    rewards = tiny.metric_values(run, "eval_reward")
    assert isinstance(tiny.last_event(run), Finished)
    assert rewards[-1] > rewards[0] + raises


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_killed_run_writes_the_same_answers(
    method: str, rounds: int, adapter: Changes, model: Path, tmp_path: Path
) -> None:
    """Also if it was killed between two rounds of writing, and in the second epoch."""
    changes = {
        "rollouts__steps_per_generation": rounds,
        "optimisation__max_steps": 11,
        "optimisation__per_device_train_batch_size": 3,
        "evaluation__eval_steps": 3,
        "evaluation__logging_steps": 2,
    }
    whole = train(tmp_path / "whole", model, SAVED | adapter | changes, method=method)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert again.rollouts.read_text() == whole.rollouts.read_text()
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
def test_prompts_at_a_time_do_not_change_the_loss(loss: str, model: Path, tmp_path: Path) -> None:
    curves = []
    for size, accumulation in ((4, 1), (2, 2), (1, 4)):
        sizes = {
            "optimisation__per_device_train_batch_size": size,
            "optimisation__gradient_accumulation_steps": accumulation,
            "optimisation__train_sampling_strategy": "sequential",
            "optimisation__learning_rate": 0.001,
            "policy__loss_type": loss,
        }
        run = train(tmp_path / f"{size}", model, sizes)
        names = ("loss", "grad_norm", "reward")
        curves.append([value for name in names for value in tiny.metric_values(run, name)])

    assert curves[1] == pytest.approx(curves[0], rel=1e-3, abs=1e-6)
    assert curves[2] == pytest.approx(curves[0], rel=1e-3, abs=1e-6)


def test_answers_are_scored_as_they_were_written(model: Path, tmp_path: Path) -> None:
    """Padding, the cache and the batch do not change what is learned from."""
    run = train(tmp_path / "run", model, {}, rollouts__temperature=0.7)

    assert max(tiny.metric_values(run, "sampling_gap")) < 1e-5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_writes_as_it_learns(precision: str, model: Path, tmp_path: Path) -> None:
    """Sampling in another number format would show as a gap far beyond the format's rounding."""
    run = train(tmp_path / "run", model, {}, precision=precision)

    last = tiny.last_event(run)
    if isinstance(last, Failed):
        assert last.code == "precision_refused", last
        return
    assert max(tiny.metric_values(run, "sampling_gap")) < 0.03


def test_weights_keep_their_formats_while_answers_are_written(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, **{"method": "grpo", "precision": "bf16"} | SMALL)
    trainer = make_trainer(run)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    state = torch.get_rng_state()

    with trainer.settings.grading:
        trainer.score_reference(lambda _phase: None)

    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in trainer.model.named_parameters():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize(
    ("score", "words", "code"),
    [
        ("0.0", "never gets a reward", "no_spread"),
        ("1.0", "solves all rows", "no_spread"),
        ("1 / 0", "could be scored", "grader_failed"),
    ],
)
def test_run_without_anything_to_learn_is_refused_before_it_trains(
    score: str, words: str, code: str, model: Path, tmp_path: Path
) -> None:
    grader = python_grader(f"def grade(sample, item):\n    return {score}\n")
    run = train(tmp_path / "run", model, {"reward__grader": grader})

    failed = tiny.last_event(run)
    phases = [event.name for event in tiny.events_of(run, PhaseChanged)]
    assert isinstance(failed, Failed)
    assert (failed.code, phases[-1]) == (code, "trying the grader")
    assert words in failed.message
    assert [record["step"] for record in records(run)] == [0] * 8


def test_answers_without_a_score_teach_nothing(model: Path, tmp_path: Path) -> None:
    grader = python_grader(
        "def grade(sample, item):\n"
        "    text = sample['output_text']\n"
        "    if len(text) % 3 == 0:\n"
        "        raise ValueError('no score for this length')\n"
        "    return text.count('a') / len(text)\n"
    )
    run = train(tmp_path / "run", model, {"reward__grader": grader})

    shares = tiny.metric_values(run, "grader_error_share")
    alarms = {event.code for event in tiny.events_of(run, AlarmRaised)}
    answers = [answer for group in records(run) for answer in group["answers"]]
    assert isinstance(tiny.last_event(run), Finished)
    assert 0 < max(shares) < 1
    assert "grader_failed" in alarms
    for answer in answers:
        assert (answer["reward"] is None) == (len(answer["text"]) % 3 == 0)
        assert (answer["messages"] == []) == (answer["reward"] is not None)


def test_hacked_grader_raises_an_alarm(model: Path, tmp_path: Path) -> None:
    """The reward is for letters; the held-out grader wants anything else."""
    held_out = python_grader(
        "def grade(sample, item):\n"
        "    text = sample['output_text']\n"
        "    return 1 - sum('a' <= c <= 'z' for c in text) / len(text) if text else 1.0\n"
    )
    changes = {"reward__held_out_grader": held_out, "evaluation__eval_steps": 5}
    run = train(tmp_path / "run", model, changes, optimisation__max_steps=30)

    alarms = {event.code: event for event in tiny.events_of(run, AlarmRaised)}
    scores = tiny.metric_values(run, "eval_held_out_score")
    assert isinstance(tiny.last_event(run), Finished)
    assert scores[-1] < scores[0] - 0.3
    assert "held-out grader" in alarms["reward_hacked"].message


def test_honest_run_raises_no_alarm(model: Path, tmp_path: Path) -> None:
    changes = {"reward__held_out_grader": LETTERS, "evaluation__eval_steps": 5}
    run = train(tmp_path / "run", model, changes, optimisation__max_steps=15)

    assert {event.code for event in tiny.events_of(run, AlarmRaised)} <= {"answers_cut_off"}


def test_answers_of_each_step_are_kept_with_their_scores(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {}, optimisation__max_steps=3)

    groups = records(run)
    validation = records(run, "validation")
    rewards = tiny.metric_values(run, "reward")
    assert [group["step"] for group in groups] == [1] * 4 + [2] * 4 + [3] * 4
    assert {len(group["answers"]) for group in groups} == {4}
    assert validation[0]["step"] == 0
    assert {len(group["answers"]) for group in validation} == {4}
    for step, reward in enumerate(rewards, 1):
        scores = [
            a["reward"] for group in groups if group["step"] == step for a in group["answers"]
        ]
        assert sum(scores) / len(scores) == pytest.approx(reward)
    assert all(group["prompt"].startswith("What is") for group in groups)


def test_restarted_run_keeps_none_of_its_old_answers(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {}, optimisation__max_steps=3)
    before = run.rollouts.read_text()

    assert execute_run(run.root, StopHandler()) == 0
    assert run.rollouts.read_text() == before


def test_prompts_that_an_earlier_run_tokenised_are_reused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for name in ("first", "second"):
        run = tiny.write_run(tmp_path / name, model, **{"method": "grpo"} | SMALL)
        spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
        cached = spec.model_copy(update={"cache": tmp_path / "cache"})
        run.job.write_text(cached.model_dump_json(), encoding="utf-8")
        assert execute_run(run.root, StopHandler()) == 0
        runs.append(run)

    first, second = runs
    assert capsys.readouterr().out.count("tokenised by an earlier run") == 2
    assert first.rollouts.read_text() == second.rollouts.read_text()


def test_prompts_and_answers_beyond_the_context_are_refused(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {"rollouts__max_new_tokens": 128})

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert failed.code == "conflict"
    assert "at most 128" in failed.message


def test_reference_of_full_fine_tune_is_the_model_before_training(
    model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, {"policy__beta": 0.1}, optimisation__max_steps=8)

    kl = tiny.metric_values(run, "kl")
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[-1] > 0.001


def test_base_models_own_sampling_settings_do_not_count(model: Path, tmp_path: Path) -> None:
    """A model saved with top-k 1 would write the same answer every time."""
    other = tmp_path / "greedy"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "top_k": 1, "repetition_penalty": 3.0, "eos_token_id": 2})
    )
    plain, greedy = (train(tmp_path / f"run-{name.name}", name, {}) for name in (model, other))

    assert greedy.rollouts.read_text() == plain.rollouts.read_text()
