"""Reward models of runs are found for graders, and refused with a reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from studio.errors import ConflictError, InvalidError, StudioError
from studio.methods import AnyRecipe
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services.estimates import judge_memory, measurements, memory, reference_runs
from studio.services.estimates.activation_memory import BatchShape
from studio.services.graders import judges
from studio.services.models import reward_models
from studio.services.models.reward_models import ADAPTER_WEIGHTS
from studio.services.precision import recommendation
from studio.services.runs import bulk_actions, hub_access, run_commands, runs
from studio.services.runs.hub_access import HubAccessCache
from studio.settings import Settings
from studio.weights.model_config import ModelShape
from studio.worker.processes import run_dir_setup
from tests.support.factories import make_finished_run, make_recipe, make_run
from tests.unit.weights import safetensors_folders

PARAM = "reward.grader"


def grader(run_id: int | None, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields
    prompt = {"role": "user", "content": "{{ item.messages[-1].content }}"}
    answer = {"role": "assistant", "content": "{{ sample.output_text }}"}
    named = {"type": "score_model", "name": "reward", "model": f"run:{run_id}"}
    return {**named, "input": [prompt, answer], **fields}


def reward(run_id: int | None) -> dict[str, str]:
    return {"grader": json.dumps(grader(run_id))}


def recipe(run_id: int | None) -> AnyRecipe:
    return make_recipe(method="grpo", reward=reward(run_id))


@pytest.fixture
def scores(db: Session, settings: Settings) -> RunDir:
    """Make run 1, which has trained a reward model as an adapter, with the files it needs."""
    run = make_finished_run(db, "scores")
    run.recipe = make_recipe(method="reward")
    run.resolved = {"parameters": 1000, "weight_bytes": 2000}
    folder = RunDir(settings.runs / str(run.id))
    base = safetensors_folders.write(settings.home / "base", {"a": ("F32", [1.0])})
    folder.artifacts.mkdir(parents=True)
    spec = JobSpec(run_id=1, name="scores", model=str(base), train=base, validation=None)
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    (folder.artifacts / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder.artifacts / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (folder.artifacts / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    (folder.artifacts / ADAPTER_WEIGHTS).touch()
    db.flush()
    return folder


def refused(db: Session, settings: Settings, asked: AnyRecipe) -> tuple[str, str]:
    """Return why a recipe is refused, and which setting is to blame."""
    checks = hub_access.enable_hub_checks(settings, HubAccessCache())
    with checks, pytest.raises(InvalidError) as raised:
        runs.check(db, asked)
    assert raised.value.hint
    return raised.value.message, raised.value.param


@pytest.mark.usefixtures("scores")
def test_recipe_with_a_reward_model_has_no_problem(db: Session, settings: Settings) -> None:
    assert [*reward_models.find_problems(db, settings.runs, recipe(1))] == []


def test_run_is_launched_with_its_reward_model(
    db: Session, settings: Settings, scores: RunDir
) -> None:
    run = make_run(db, method="grpo", reward=reward(1))
    folder = RunDir(settings.runs / str(run.id))

    run_dir_setup.write_run_dir(db, run, folder, settings)

    spec = JobSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
    (judge,) = spec.reward_models.values()
    assert [*spec.reward_models] == ["run:1"]
    assert (judge.model.adapter, judge.model.gives_scores) == (str(scores.artifacts), True)
    assert judge.model.model == str(settings.home / "base")


@pytest.mark.usefixtures("scores")
def test_calibration_gets_the_reward_model(db: Session, settings: Settings) -> None:
    params = measurements.task_params(db, recipe(1), settings, "calibration")

    assert [*json.loads(params["job"])["reward_models"]] == ["run:1"]


@pytest.mark.usefixtures("scores")
def test_form_lists_reward_models_that_are_done(db: Session) -> None:
    make_finished_run(db, "writer")
    make_run(db, "waits").recipe = make_recipe(method="reward")

    assert [option.value for option in judges.list_reward_models(db)] == ["run:1"]


def without_weights(folder: RunDir, _base: Path) -> None:
    (folder.artifacts / ADAPTER_WEIGHTS).unlink()


def without_artifacts(folder: RunDir, _base: Path) -> None:
    shutil.rmtree(folder.artifacts)


def without_folder(folder: RunDir, _base: Path) -> None:
    shutil.rmtree(folder.root)


def without_base(_folder: RunDir, base: Path) -> None:
    shutil.rmtree(base)


def without_tokenizer(folder: RunDir, _base: Path) -> None:
    (folder.artifacts / "tokenizer_config.json").unlink()


def without_template(folder: RunDir, _base: Path) -> None:
    (folder.artifacts / "chat_template.jinja").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_weights, "The weights of the reward model of run 1 are gone."),
        (without_artifacts, "The weights of the reward model of run 1 are gone."),
        (without_folder, "The files of run 1 have been deleted."),
        (without_base, "The base model of run 1 is gone"),
        (without_tokenizer, "The reward model of run 1 has no tokenizer."),
        (without_template, "The reward model of run 1 has no chat template."),
    ],
)
def test_incomplete_reward_model_is_refused(
    damage: Callable[[RunDir, Path], None],
    message: str,
    db: Session,
    settings: Settings,
    scores: RunDir,
) -> None:
    damage(scores, settings.home / "base")

    told, param = refused(db, settings, recipe(1))
    assert told.startswith(message)
    assert param == PARAM
    with pytest.raises(StudioError):
        reward_models.judges_for(db, settings.runs, recipe(1))


def test_run_that_has_no_reward_model_is_refused(db: Session, settings: Settings) -> None:
    make_finished_run(db, "writer")
    make_run(db, "waits").recipe = make_recipe(method="reward")
    db.flush()

    assert [refused(db, settings, recipe(number)) for number in (1, 2, 9)] == [
        ("Run 1 trained no reward model.", PARAM),
        ("The reward model of run 2 is not ready.", PARAM),
        ("There is no run 9.", PARAM),
    ]


@pytest.mark.usefixtures("scores")
def test_reward_model_is_kept_until_the_run_that_asks_it_has_ended(
    db: Session, settings: Settings
) -> None:
    asks = make_run(db, method="grpo", reward=reward(1))

    for delete in (
        lambda: bulk_actions.move_to_trash(db, [1]),
        lambda: runs.delete(db, 1, settings.runs),
    ):
        with pytest.raises(ConflictError, match=f"Run {asks.id} asks the reward model of run 1"):
            delete()
    run_commands.cancel(db, asks.id or 0)
    assert bulk_actions.move_to_trash(db, [1]) == [1]


def test_held_out_grader_is_named_when_it_is_to_blame(db: Session, settings: Settings) -> None:
    asked = make_recipe(method="grpo", reward={"held_out_grader": json.dumps(grader(9))})

    assert refused(db, settings, asked) == ("There is no run 9.", "reward.held_out_grader")


@pytest.mark.usefixtures("scores")
def test_reward_model_gives_no_labels(db: Session, settings: Settings) -> None:
    labels = {"type": "label_model", "labels": ["a", "b"], "passing_labels": ["a"]}
    asked = make_recipe(method="grpo", reward={"grader": json.dumps(grader(1, **labels))})

    message = "run:1 is a reward model, which gives scores, and no labels."
    assert refused(db, settings, asked) == (message, PARAM)


SHAPE = ModelShape(
    layers=2,
    hidden_size=8,
    intermediate=16,
    heads=2,
    kv_heads=2,
    head_size=4,
    vocab_size=64,
    tied_embeddings=True,
)


def test_weights_are_float32_on_a_cpu_unless_they_are_quantised() -> None:
    plain, quantised = (
        judge_memory.JudgeFacts(
            parameters=1000,
            weight_bytes=2000,
            is_quantised=is_quantised,
            shape=SHAPE,
            max_length=64,
        )
        for is_quantised in (False, True)
    )

    assert judge_memory.weight_bytes([plain, quantised], on_gpu=False) == 4000 + 2000
    assert judge_memory.weight_bytes([plain, quantised], on_gpu=True) == 2000 + 2000
    assert judge_memory.work_bytes([plain], answers=2) == 2 * 64 * (4 * 8 + 3 * 16) * 4


def test_memory_and_speed_depend_on_the_reward_model(db: Session) -> None:
    asked, other = recipe(1), make_recipe(method="grpo")

    assert measurements.task_subject(db, asked) != measurements.task_subject(db, other)
    keys = [reference_runs._memory_key(one) for one in (asked, other)]
    assert keys[0] != keys[1]


def test_without_facts_of_a_reward_model_there_is_no_estimate(db: Session) -> None:
    known = recommendation.load_model_facts(db, "starter")
    found = judge_memory.load(db, recipe(9))

    assert found is None
    batch = BatchShape(4, 50, 20)
    assert memory.estimate(recipe(9), known, batch, on_gpu=False, judges=found) is None
