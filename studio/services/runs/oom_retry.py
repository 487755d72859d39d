"""Automatic retry with a smaller batch size after running out of memory, if the recipe allows.

The same run continues as another attempt. Its recipe is changed permanently and its history records
the change, so that no comparison uses a recipe the run was not trained with.

"""

from typing import Any

from pydantic import ValidationError
from sqlmodel import Session, col, select

from studio.db.states import RunStatus
from studio.db.tables import Run, RunEvent
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.events import Failed
from studio.recipe.dotted_keys import merge
from studio.services.runs import states

SHRUNK = "shrunk"
"""The kind of the event that records a retry with a smaller batch size."""


def smaller_batch(recipe: AnyRecipe) -> dict[str, Any]:
    """Return the change to about half the batch size at the same effective batch; empty at 1."""
    optimisation = recipe.optimisation
    batch = optimisation.per_device_train_batch_size
    smaller = next((size for size in range(batch // 2, 0, -1) if batch % size == 0), None)
    if smaller is None:
        return {}
    accumulation = optimisation.gradient_accumulation_steps * batch // smaller
    return {
        "optimisation": {
            "per_device_train_batch_size": smaller,
            "gradient_accumulation_steps": accumulation,
        }
    }


def mark_for_retry(run: Run, failure: Failed) -> bool:
    """Mark a failed run for a retry once its process is gone. Return whether it was marked."""
    is_enabled = run.recipe.recovery.smaller_batches and run.status.is_live
    if failure.code != "out_of_memory" or not is_enabled or run.status is RunStatus.STOPPING:
        return False
    if not _smaller_recipe(run):
        return False
    run.error_code, run.error_message, run.error_hint = failure.code, failure.message, failure.hint
    return True


def is_marked_for_retry(run: Run) -> bool:
    return run.status.is_live and bool(run.error_code)


def requeue_smaller(db: Session, run: Run) -> None:
    """Queue the run again with a smaller batch size, from its newest checkpoint if it has one."""
    old_size = run.recipe.optimisation.per_device_train_batch_size
    run.recipe = _smaller_recipe(run) or run.recipe
    optimisation = run.recipe.optimisation
    details = {
        "because": run.error_message,
        "attempt": run.attempt,
        "from": old_size,
        "to": optimisation.per_device_train_batch_size,
        "accumulation": optimisation.gradient_accumulation_steps,
    }
    run.error_code = run.error_message = run.error_hint = ""
    run.resumes = True
    states.record_event(db, run, SHRUNK, details)
    states.move(db, run, RunStatus.QUEUED, {"because": details["because"], "attempt": run.attempt})


def list_shrinks(db: Session, run_id: int) -> list[dict[str, Any]]:
    """Return the batch size reductions, oldest first: attempt, from, to, accumulation."""
    query = select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.kind == SHRUNK)
    return [event.data for event in db.exec(query.order_by(col(RunEvent.id)))]


def _smaller_recipe(run: Run) -> AnyRecipe | None:
    """Return the recipe with a smaller batch size, or None if there is none."""
    change = smaller_batch(run.recipe)
    try:
        return (
            RECIPE_ADAPTER.validate_python(merge(run.recipe.model_dump(), change))
            if change
            else None
        )
    except ValidationError:  # more accumulation steps than the setting allows
        return None
