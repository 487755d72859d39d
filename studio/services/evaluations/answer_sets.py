"""The answers of a model to some rows: what they depend on, and the task that collects them.

Two evaluations that ask the same model the same rows share one set, so a base model answers once
for all the runs that start from it.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select
from sqlmodel import delete as remove

from studio import hardware
from studio.db.evaluations import Answer, AnswerSet, Evaluation
from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Task
from studio.errors import ConflictError
from studio.evaluation.rows import AnsweredRow, AnswerKind
from studio.protocols.evaluation import EvaluationJob, RowResult
from studio.services.models.served_models import ServedModel
from studio.services.tasks import tasks

KIND = "evaluate"

_RECORDS = 2
"""Raise it when more is recorded of a row: models are compared by what is recorded of both."""

_LIBRARIES = ("torch", "transformers")
"""Libraries whose versions decide what a model answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerProgress:
    """How far a model has come with answering."""

    status: TaskStatus
    share: float = 0.0
    message: str = ""
    """Why it failed, and what to do."""


FINISHED = AnswerProgress(status=TaskStatus.SUCCEEDED, share=1.0)


def get_or_create(
    db: Session,
    model: str,
    identity: Mapping[str, Any],
    job: EvaluationJob,
    rows: Mapping[str, Any],
) -> AnswerSet:
    """Return the answer set of a model and rows, and queue the task that answers them, if needed.

    `identity` is what distinguishes the model from others, and `rows` what identifies the rows,
    wherever their files are.
    """
    made_by = {
        "records": _RECORDS,
        "model": identity,
        **({"answers": job.answers} if job.answers != "text" else {}),
        "rows": {**rows, "count": job.rows},
        "template": job.chat_template if job.has_chat_template else "",
        "has_expected": job.has_expected,
        "max_length": job.max_length,
        "max_new_tokens": job.max_new_tokens,
        "versions": library_versions(),
    }
    key = checksum(made_by)
    answer_set = db.exec(select(AnswerSet).where(AnswerSet.key == key)).first()
    if answer_set is None:
        answer_set = AnswerSet(key=key, model=model, made_by=made_by)
        db.add(answer_set)
        db.flush()
    if answer_set.finished_at is None:
        params = job.model_copy(update={"answer_set": answer_set.id}).model_dump(mode="json")
        tasks.enqueue(db, KIND, _subject(answer_set), params)
    return answer_set


def ask_again(db: Session, answer_set: AnswerSet) -> None:
    """Queue the task that failed or was cancelled once more, if the answers are not there.

    Raises:
        ConflictError: it was so long ago that nothing is left of the task.

    """
    if answer_set.finished_at is not None:
        return
    task = tasks.latest(db, KIND, _subject(answer_set))
    if task is None:
        raise ConflictError(
            "This evaluation is too old to be tried again.", hint="Delete it, and evaluate again."
        )
    tasks.enqueue(db, KIND, _subject(answer_set), task.params)


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Keep the answers that a task has collected."""
    answer_set = db.get(AnswerSet, task.params["answer_set"])
    if not result or answer_set is None or answer_set.finished_at is not None:
        return
    rows = [RowResult.model_validate(row) for row in result["rows"]]
    db.add_all(_to_answer(answer_set, row) for row in rows)
    answer_set.computed_in = " and ".join(sorted({row.computed_in for row in rows}))
    answer_set.finished_at = datetime.now(UTC)
    for run in _list_evaluated_runs(db, answer_set):
        run.metrics = {**run.metrics, **result["metrics"]}
    # The rows are kept in a table of their own.
    task.result = {"answers": len(rows)}


def checksum(made_by: Mapping[str, Any]) -> str:
    """Return what is equal for results that equal things have made."""
    return hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide what a model answers."""
    return {name: hardware.package_versions().get(name, "") for name in _LIBRARIES}


def load_answers(db: Session, answer_set_id: int) -> Sequence[Answer]:
    """Return the answers in the order of their rows."""
    query = select(Answer).where(Answer.answer_set_id == answer_set_id)
    return db.exec(query.order_by(col(Answer.position))).all()


def to_row(answer: Answer, kind: AnswerKind) -> AnsweredRow:
    """Return an answer as metrics read it."""
    return AnsweredRow(
        position=answer.position,
        prompt=answer.prompt,
        reference=answer.reference,
        answer=answer.answer,
        reason="length" if answer.reason == "length" else "stop",
        tokens=answer.tokens,
        nll=answer.nll,
        nll_tokens=answer.nll_tokens,
        rejected_nll=answer.rejected_nll,
        kind=kind,
        confidence=answer.confidence,
    )


def find_progress(db: Session, answer_set: AnswerSet) -> AnswerProgress:
    """Return how far the answering has come."""
    if answer_set.finished_at is not None:
        return FINISHED
    return task_progress(db, KIND, _subject(answer_set))


def task_progress(db: Session, kind: str, subject: str) -> AnswerProgress:
    """Return how far the newest task for a subject has come; without one, it was cancelled."""
    task = tasks.latest(db, kind, subject)
    if task is None:
        return AnswerProgress(status=TaskStatus.CANCELLED)
    message = " ".join(part for part in (task.error_message, task.error_hint) if part)
    return AnswerProgress(status=task.status, share=task.share, message=message)


def delete_unused(db: Session) -> None:
    """Delete the answer sets that no evaluation uses any longer, and cancel their tasks."""
    used = select(Evaluation.base_id).union(select(Evaluation.tuned_id))
    for answer_set in db.exec(select(AnswerSet).where(col(AnswerSet.id).not_in(used))).all():
        for task in tasks.list_for_subject(db, _subject(answer_set)):
            if not task.status.is_final:
                tasks.cancel(task)
        db.exec(remove(Answer).where(col(Answer.answer_set_id) == answer_set.id))
        db.delete(answer_set)


def _list_evaluated_runs(db: Session, answer_set: AnswerSet) -> Sequence[Run]:
    """Return the runs whose model gave the answers, to rows that they held out."""
    evaluated = select(Evaluation.run_id).where(
        Evaluation.tuned_id == answer_set.id, col(Evaluation.is_held_out)
    )
    return db.exec(select(Run).where(col(Run.id).in_(evaluated)).order_by(col(Run.id))).all()


def _subject(answer_set: AnswerSet) -> str:
    return f"answers:{answer_set.id}"


def _to_answer(answer_set: AnswerSet, row: RowResult) -> Answer:
    fields = row.model_dump(exclude={"computed_in", "kind"})
    for name in ("nll", "rejected_nll"):
        loss = fields[name]
        fields[name] = loss if loss is not None and math.isfinite(loss) else None
    return Answer(answer_set_id=answer_set.id or 0, **fields)


def identify(served: ServedModel) -> dict[str, Any]:
    """Return what distinguishes the weights of a model, and how they are loaded."""
    return {
        "model": _files_of(served.model),
        "adapter": _files_of(served.adapter),
        "weights": _files_of(served.weights),
        "tokenizer": _files_of(served.tokenizer),
        "lora": served.lora,
        "options": served.options,
        "code": served.code,
        "formats": [served.precision, served.base_dtype] if served.base_dtype else [],
        **({"max_pixels": served.max_pixels} if served.max_pixels else {}),
    }


def _files_of(name: str) -> Any:  # noqa: ANN401 -- a name on the hub, or its files
    """Return the size and the time of each file of a model; its name if it is on the hub."""
    if not name or not Path(name).is_absolute():
        return name
    files = (path for path in sorted(Path(name).iterdir()) if path.is_file())
    facts = ((path.name, path.stat()) for path in files)
    return [[file, stat.st_size, stat.st_mtime_ns] for file, stat in facts]
