"""GPUs that are kept from runs because runs failed on them, until somebody releases them.

A run whose GPU reports an error starts once more, on another GPU if there is one. If it succeeds
there, the first GPU is under suspicion, and after two such runs it is in quarantine.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlmodel import Session, col, func, select

from studio.db.states import RunStatus
from studio.db.tables import Attempt, QuarantinedGpu, Run
from studio.errors import NotFoundError

FAILED = "gpu_failed"
"""The code of failures that a GPU or its driver reported."""

MAX_RETRIES = 1
"""How often such a failure starts a run again. After two GPUs, the cause is in the run."""

REASON = "runs failed on it that succeeded on another GPU"
"""Why GPUs are in quarantine."""

MAX_SUSPICIONS = 2
_RECENT_ATTEMPTS = 20
"""How many of a GPU's attempts count: what failed long ago says little."""


def may_retry(db: Session, run: Run) -> bool:
    """Whether a run whose GPU failed starts again."""
    return len(list_failed_on(db, run)) < MAX_RETRIES


def list_failed_on(db: Session, run: Run) -> Sequence[str]:
    """Return the GPUs on which earlier attempts at a run failed with an error of the GPU."""
    query = select(Attempt.gpu).where(Attempt.run_id == run.id, Attempt.error_code == FAILED)
    return db.exec(query).all()


def judge(db: Session, run: Run) -> None:
    """Put the GPUs into quarantine that failed a run which then succeeded on another one."""
    if run.status is not RunStatus.SUCCEEDED:
        return
    last = db.exec(
        select(Attempt.gpu).where(Attempt.run_id == run.id).order_by(col(Attempt.number).desc())
    ).first()
    for gpu in {*list_failed_on(db, run)} - {last, ""}:
        if _count_suspicions(db, gpu) >= MAX_SUSPICIONS:
            _quarantine(db, gpu)


def list_quarantined(db: Session) -> Mapping[str, str]:
    """Return why GPUs are in quarantine, by their names for CUDA."""
    rows = db.exec(select(QuarantinedGpu).where(col(QuarantinedGpu.released_at).is_(None))).all()
    return {row.gpu: row.reason for row in rows}


def release(db: Session, gpu: str) -> None:
    """Let runs have a GPU again. What failed on it before no longer counts.

    Raises:
        NotFoundError: it is not in quarantine.

    """
    row = db.get(QuarantinedGpu, gpu)
    if row is None or row.released_at is not None:
        raise NotFoundError(f"GPU {gpu} is not in quarantine.")
    row.released_at = datetime.now(UTC)


def _count_suspicions(db: Session, gpu: str) -> int:
    """Count the runs that failed on a GPU, of its last attempts, and succeeded later."""
    released_at = db.exec(
        select(QuarantinedGpu.released_at).where(col(QuarantinedGpu.gpu) == gpu)
    ).first()
    recent = select(Attempt.id).where(Attempt.gpu == gpu)
    if released_at is not None:
        recent = recent.where(col(Attempt.began_at) > released_at)
    recent = recent.order_by(col(Attempt.id).desc()).limit(_RECENT_ATTEMPTS)
    query = select(func.count(func.distinct(Attempt.run_id))).join(Run)
    conditions = (Attempt.error_code == FAILED, Run.status == RunStatus.SUCCEEDED)
    return db.exec(query.where(col(Attempt.id).in_(recent), *conditions)).one()


def _quarantine(db: Session, gpu: str) -> None:
    row = db.get(QuarantinedGpu, gpu) or QuarantinedGpu(gpu=gpu)
    if row.released_at is not None or not row.reason:
        row.reason, row.released_at, row.since = REASON, None, datetime.now(UTC)
        db.add(row)
