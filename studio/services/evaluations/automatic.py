"""The evaluation that follows a run by itself, as its recipe says."""

from collections.abc import Mapping

from sqlmodel import Session

from studio.db.evaluations import Evaluation
from studio.db.owners import Actor, acting_as
from studio.db.tables import Run, Sweep
from studio.errors import StudioError
from studio.evaluation.run_metrics import is_evaluated
from studio.recipe.sections import AfterTraining
from studio.services.evaluations import evaluations
from studio.services.evaluations.evaluations import EvaluationRequest
from studio.services.runs import states
from studio.settings import Settings

ROWS: Mapping[AfterTraining, int] = {
    "quick": evaluations.DEFAULT_ROWS,
    "full": evaluations.MAX_ROWS,
}


def queue_for_run(db: Session, settings: Settings, run: Run) -> Evaluation | None:
    """Queue the evaluation of a run that has just succeeded; None if there is to be none.

    The runs of a sweep or a study are not evaluated, unless the sweep searches for the best value
    of an evaluation. A reason why a run cannot be evaluated is recorded in its history.
    """
    rows = ROWS.get(run.recipe.evaluation.after_training)
    if rows is None or not _is_wanted(db, settings, run):
        return None
    request = EvaluationRequest(rows=rows)
    try:
        with acting_as(Actor(account_id=run.owner_id)), db.begin_nested():
            return evaluations.create(db, settings, run.id or 0, request)
    except StudioError as error:
        details = {"code": error.code, "message": error.message, "hint": error.hint}
        states.record_event(db, run, "unevaluated", details)
        return None


def _is_wanted(db: Session, settings: Settings, run: Run) -> bool:
    if run.sweep_id is not None:
        return is_evaluated(db.get_one(Sweep, run.sweep_id).metric)
    return settings.evaluate_runs and run.study_id is None
