"""What a dry run has counted, found again by what decides it."""

from typing import Any

import pytest
from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.recipe.adapters import Lora
from studio.services.estimates import estimates, measurements
from studio.services.precision import recommendation
from studio.settings import Settings
from tests.support.factories import make_recipe
from tests.unit.weights import safetensors_folders

PARTS = {"weights": 40_000_000, "gradients": 20_000_000, "scores": 10_000_000}
RESULT = {
    "at_peak": PARTS,
    "longest_example": 90,
    "longest_answer": 40,
    "train_rows": 10,
    "train_tokens": 500,
}
DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 300,
}


@pytest.fixture
def db(db: Session, settings: Settings) -> Session:
    """Give the furnished model weights, without which nothing is worked out."""
    safetensors_folders.write(
        settings.models / "starter", {"a": ("F32", [0.1] * 4)}, model_type="gpt2"
    )
    return db


def recipe(**changes: Any) -> AnyRecipe:  # noqa: ANN401 -- any field of a recipe
    return make_recipe(**({"precision": "fp32", "adapter": {"kind": "full"}} | changes))


def count(db: Session, settings: Settings, asked: AnyRecipe) -> Task:
    chore = measurements.enqueue_dry_run(db, asked, settings)
    chore.status, chore.result = TaskStatus.SUCCEEDED, RESULT
    return chore


def test_dry_run_subject_depends_only_on_memory_settings(db: Session) -> None:
    same = recipe(optimisation={"learning_rate": 0.5, "max_steps": 3})
    others = [
        recipe(precision="bf16"),
        recipe(adapter={"kind": "lora"}),
        recipe(data={"max_length": 77}),
        recipe(optimisation={"activation_checkpointing": True}),
        recipe(optimisation={"per_device_train_batch_size": 3}),
        recipe(evaluation={"per_device_eval_batch_size": 3}),
    ]
    names = [measurements.task_subject(db, one) for one in [recipe(), same, *others]]

    assert names[0] == names[1]
    assert len(set(names)) == 1 + len(others)


def test_setting_added_later_leaves_dry_run_subject(db: Session) -> None:
    class LaterLora(Lora):
        added_later: int = 3

    earlier = recipe(adapter={"kind": "lora", "r": 4})
    later, changed = (
        earlier.model_copy(update={"adapter": LaterLora(r=4, added_later=value)})
        for value in (3, 4)
    )
    subject = measurements.task_subject(db, earlier)

    assert measurements.task_subject(db, later) == subject
    assert measurements.task_subject(db, changed) != subject


def test_repeated_dry_run_request_reuses_finished_task(db: Session, settings: Settings) -> None:
    done = count(db, settings, recipe())

    assert measurements.enqueue_dry_run(db, recipe(), settings).id == done.id


def test_dry_run_result_replaces_formula_estimate(db: Session, settings: Settings) -> None:
    before = estimates.estimate_recipe(db, recipe()).memory
    count(db, settings, recipe())
    found = estimates.estimate_recipe(db, recipe()).memory

    assert before is None
    assert found is not None
    assert (found.is_exact, found.formula_total, found.estimate.length) == (True, None, 90)
    assert found.estimate.parts.items() >= PARTS.items()


def test_dry_run_corrects_formula_estimate(db: Session, settings: Settings) -> None:
    safetensors_folders.write(settings.models / "starter", {"a": ("F32", [0.1] * 4)}, **DECODER)
    facts = recommendation.load_model_facts(db, "starter")
    count(db, settings, recipe())
    by = estimates.load_inputs(db)
    closed = estimates.formula_estimate(recipe(), facts, by)
    exact = estimates.best_memory_estimate(db, recipe(), facts, by)
    again = estimates.formula_estimate(
        recipe(), facts, by, estimates.formula_correction(db, recipe(), facts, by)
    )

    assert closed is not None
    assert exact is not None
    assert again is not None
    assert (exact.formula_total, again.total) == (closed.total, exact.total)
    assert closed.estimate.length == RESULT["longest_example"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "fp8"}, "cannot simulate float8 mixed: its scaling depends on actual"),
        ({"adapter": {"kind": "lora", "base_dtype": "nf4"}}, "quantising them needs their values"),
    ],
)
def test_unsupported_recipe_is_rejected_with_reason(
    db: Session, settings: Settings, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidError, match=said):
        measurements.enqueue_dry_run(db, recipe(**changes), settings)
