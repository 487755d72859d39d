"""Models by the names that OpenAI's interface gives them, and what it takes to have one answer.

A model of the studio's goes by its own name; what run 7 has made, by `ft:<base>:local:<suffix>:7`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlmodel import Session, col, select

from studio.db.openai import OpenAIJob
from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.rundir import JobSpec, RunDir
from studio.services import consents, models, owners, trash

OWNER = "local"
"""Stands where OpenAI names an organisation."""

_TUNED = re.compile(r"ft:.*:(\d{1,18})(?P<checkpoint>:ckpt-step-\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A model that can be asked."""

    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """What it takes to load a model."""

    model: str
    adapter: str = ""
    code: str = ""

    @property
    def folder(self) -> str:
        """Where its tokenizer is."""
        return self.adapter or self.model


def name_of(run: Run, suffix: str) -> str:
    return f"ft:{run.recipe.base_model}:{OWNER}:{suffix}:{run.id}"


def listing(db: Session) -> Iterator[Known]:
    """Yield the models there are: those that were tuned first, each newest first."""
    tuned = (
        select(Run, OpenAIJob.suffix)
        .outerjoin(OpenAIJob, col(OpenAIJob.run_id) == col(Run.id))
        .where(Run.status == RunStatus.SUCCEEDED, col(Run.deleted_at).is_(None))
    )
    for run, suffix in db.exec(tuned.order_by(col(Run.id).desc())):
        yield _tuned(run, suffix or "")
    for model in models.newest(db):
        if model.kind != "run":
            yield Known(name=model.name, created_at=model.created_at)


def get(db: Session, name: str) -> Known:
    """Return a model by its name.

    Raises:
        NotFoundError: there is none.

    """
    run = run_of(db, name)
    if run is not None:
        return _tuned(run, suffix_of(db, run))
    model = models.named(db, name)
    if model is None:
        raise _missing(name)
    return Known(name=model.name, created_at=model.created_at)


def voice(db: Session, runs: Path, name: str) -> Voice:
    """Return what it takes to have a model answer.

    Raises:
        InvalidError: it brings code that nobody has allowed.
        NotFoundError: there is none of that name, or its files are gone.

    """
    run = run_of(db, name)
    if run is None:
        get(db, name)
        code = consents.allowed(models.named(db, name))
        return Voice(model=models.require(db, name), code=code)
    folder = RunDir(runs / str(run.id))
    if not folder.artifacts.is_dir():
        raise _missing(name)
    told = JobSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))
    if run.recipe.adapter.kind == "full":
        return Voice(model=str(folder.artifacts), code=told.code)
    return Voice(model=told.model, adapter=str(folder.artifacts), code=told.code)


def base(db: Session, name: str) -> str:
    """Return what a recipe calls a model that a job is to start from.

    Raises:
        InvalidError: it is an adapter, which is no model to start from.
        NotFoundError: there is none of that name.

    """
    run = run_of(db, name)
    if run is None:
        return name
    if run.recipe.adapter.kind != "full":
        raise InvalidError(
            f"{name} is an adapter on {run.recipe.base_model}, and no model to start from.",
            hint="Export the run as a merged model and bring that, or start from its base.",
            param="model",
        )
    return f"run-{run.id}"


def delete(db: Session, name: str) -> None:
    """Put the run that made a model into the trash, from which it can be taken back.

    Raises:
        ConflictError: it is none that a run has made.
        NotFoundError: there is none of that name.

    """
    run = run_of(db, name)
    if run is None:
        get(db, name)
        raise ConflictError(
            f"{name} is a base model.", hint="Remove it on the studio's page of models."
        )
    owners.require(db, "runs", [run.id or 0])
    trash.throw_away(db, [run.id or 0])


def run_of(db: Session, name: str) -> Run | None:
    """Return the run that has made a model, or None where the name is no tuned model's.

    Raises:
        InvalidError: it is a checkpoint's.
        NotFoundError: there is no such run, or it has not succeeded.

    """
    if not name.startswith("ft:"):
        return None
    found = _TUNED.fullmatch(name)
    run = db.get(Run, int(found[1])) if found else None
    if found is None or run is None or run.deleted_at or run.status is not RunStatus.SUCCEEDED:
        raise _missing(name)
    if found["checkpoint"]:
        raise InvalidError(
            f"{name} is a checkpoint: a run can go on from it, but it cannot be asked.",
            hint=f"Ask {name.rpartition(':ckpt')[0]}.",
            param="model",
        )
    if name != name_of(run, suffix_of(db, run)):
        raise _missing(name)
    return run


def suffix_of(db: Session, run: Run) -> str:
    job = db.get(OpenAIJob, run.id)
    return job.suffix if job else ""


def _tuned(run: Run, suffix: str) -> Known:
    return Known(name=name_of(run, suffix), created_at=run.finished_at or run.created_at)


def _missing(name: str) -> NotFoundError:
    error = NotFoundError(
        f"The model {name[:200]} does not exist.", hint="GET /v1/models lists them.", param="model"
    )
    error.code = "model_not_found"
    return error
