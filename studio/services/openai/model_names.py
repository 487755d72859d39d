"""Model names of the OpenAI API, and how to load the models they name.

Endpoints and base models have names of their own; the model of run 7 is
`ft:<base>:local:<suffix>:7`, and its checkpoint at step 20, while it exists, has `:ckpt-step-20`
appended.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sqlmodel import Session, col, select

from studio.db.endpoints import Endpoint
from studio.db.states import RunStatus
from studio.db.tables import OpenAIJob, Run
from studio.engines import ENGINES
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.protocols.run_dir import RunDir
from studio.recipe.base import Outputs
from studio.services.accounts import owners
from studio.services.endpoints import endpoints, sources
from studio.services.models import (
    embedders,
    models,
    remote_code_trust,
    rerankers,
    served_models,
)
from studio.services.models.embedders import Embedder
from studio.services.models.rerankers import Reranker
from studio.services.models.served_models import ServedModel
from studio.services.runs import artifacts, bulk_actions, continuation

ORGANISATION = "local"
"""Takes the place of OpenAI's organisation."""

_TUNED = re.compile(r"(?P<model>ft:.*:(?P<run>\d{1,18}))(?::ckpt-step-(?P<step>\d{1,12}))?")


_TUNED_RUNS = (
    select(Run, OpenAIJob.suffix)
    .outerjoin(OpenAIJob, col(OpenAIJob.run_id) == col(Run.id))
    .where(Run.status == RunStatus.SUCCEEDED, col(Run.deleted_at).is_(None))
    .order_by(col(Run.id).desc())
)
"""The runs that have a model, newest first, each with the suffix of its name."""
_SERVED: tuple[Outputs, ...] = ("text", "vector", "relevance")
"""What the models give that have a route."""
_NAMED = 5
"""Models that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that can answer."""

    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class _TunedModel:
    """The model of a run, at a step or at its end."""

    run: Run
    model: str
    step: int | None


def tuned_model_name(run: Run, suffix: str, step: int | None = None) -> str:
    of_step = "" if step is None else f":ckpt-step-{step}"
    return f"ft:{run.recipe.base_model}:{ORGANISATION}:{suffix}:{run.id}{of_step}"


def list_models(db: Session) -> Iterator[ModelInfo]:
    """Yield all models: endpoints, fine-tuned ones, base models, each group newest first."""
    for endpoint in endpoints.list_all(db):
        if endpoint.is_wanted:
            yield _endpoint_info(endpoint)
    for run, suffix in db.exec(_TUNED_RUNS):
        if run.recipe.outputs in _SERVED:
            yield _tuned_info(run, suffix or "")
    for model in models.newest(db):
        if model.kind != "run":
            yield ModelInfo(name=model.name, created_at=model.created_at)


def get(db: Session, runs: Path, name: str) -> ModelInfo:
    """Return a model by name, including checkpoints, which are not listed.

    Raises:
        NotFoundError: There is none.

    """
    if endpoint := endpoints.find_by_name(db, name):
        return _endpoint_info(endpoint)
    tuned = _parse_tuned_name(db, name)
    if tuned is not None and tuned.step is not None:
        saved_at = _checkpoint_dir(runs, tuned, tuned.step).stat().st_mtime
        return ModelInfo(name=name, created_at=datetime.fromtimestamp(saved_at, UTC))
    if tuned is not None:
        return _tuned_info(tuned.run, job_suffix(db, tuned.run))
    model = models.find_by_name(db, name)
    if model is None:
        raise _not_found_error(name)
    return ModelInfo(name=model.name, created_at=model.created_at)


def resolve_served_model(db: Session, runs: Path, name: str) -> ServedModel:
    """Return what is needed to load a model.

    Raises:
        ConflictError: It is an endpoint whose model is gone.
        InvalidError: Its remote code has not been allowed, or it is no chat model.
        NotFoundError: There is none with that name, or its files are gone.

    """
    if endpoint := endpoints.find_by_name(db, name):
        return _resolve_endpoint(db, runs, endpoint)
    tuned = _parse_tuned_name(db, name)
    if tuned is None:
        get(db, runs, name)
        code = remote_code_trust.allowed_code_hash(models.find_by_name(db, name))
        return ServedModel(model=models.require(db, name), code=code)
    run, folder = tuned.run, RunDir(runs / str(tuned.run.id))
    if run.recipe.outputs == "rewrite":
        raise InvalidError(
            f"{name} rewrites texts, and holds no conversation.",
            hint=f"Use POST /api/v1/runs/{run.id}/predict.",
            param="model",
        )
    if run.recipe.reads_pairs:
        route = "embeddings" if run.recipe.vectors else "rerank"
        raise InvalidError(
            f"{name} searches or ranks texts, and writes none.",
            hint=f"Use POST /v1/{route}.",
            param="model",
        )
    if run.recipe.outputs != "text":
        raise InvalidError(
            f"{name} reads text and writes none.", hint="Choose another model.", param="model"
        )
    if not folder.artifacts.is_dir():
        raise _not_found_error(name)
    weights = "" if tuned.step is None else str(_checkpoint_dir(runs, tuned, tuned.step))
    return served_models.for_result(run, folder, weights)


def _resolve_endpoint(db: Session, runs: Path, endpoint: Endpoint) -> ServedModel:
    engine = ENGINES[endpoint.engine]
    served = sources.resolve(db, runs, sources.source_of(endpoint)).served
    if engine.is_external or served is None:
        raise InvalidError(
            f"{endpoint.name} is served by {engine.title}, which is asked over the API alone.",
            hint="Use POST /v1/chat/completions.",
            param="model",
        )
    return served


def resolve_embedder(db: Session, runs: Path, name: str) -> Embedder:
    """Return a model that gives vectors.

    Raises:
        InvalidError: It gives none.
        NotFoundError: There is none with that name, or its files are gone.

    """
    return embedders.for_result(*_resolve_result(db, runs, name, "vector"))


def resolve_reranker(db: Session, runs: Path, name: str) -> Reranker:
    """Return a model that says how well texts match a query.

    Raises:
        InvalidError: It does not.
        NotFoundError: There is none with that name, or its files are gone.

    """
    return rerankers.for_result(*_resolve_result(db, runs, name, "relevance"))


def _resolve_result(
    db: Session, runs: Path, name: str, outputs: Literal["vector", "relevance"]
) -> tuple[Run, RunDir, str]:
    """Return the run of a model that gives something, its folder, and that of a checkpoint."""
    tuned = _parse_tuned_name(db, name)
    if tuned is None:
        get(db, runs, name)
    if tuned is None or tuned.run.recipe.outputs != outputs:
        problem, method = _GIVES[outputs]
        known = list(_list_giving(db, outputs))
        raise InvalidError(
            f"{name[:200]} {problem}.",
            hint=f"These models do: {', '.join(known)}."
            if known
            else f"Train one with the method {method}.",
            param="model",
        )
    folder = RunDir(runs / str(tuned.run.id))
    if not folder.artifacts.is_dir():
        raise _not_found_error(name)
    weights = "" if tuned.step is None else str(_checkpoint_dir(runs, tuned, tuned.step))
    return tuned.run, folder, weights


_GIVES = {
    "vector": ("gives no vectors", "Embeddings"),
    "relevance": ("does not rank texts", "Reranking"),
}
"""What is missing in models that do not give it, and the method that trains those that do."""


def _list_giving(db: Session, outputs: Outputs) -> Iterator[str]:
    """Yield the names of the newest models that give something."""
    fitting = (run for run, _suffix in db.exec(_TUNED_RUNS) if run.recipe.outputs == outputs)
    for run in islice(fitting, _NAMED):
        yield tuned_model_name(run, job_suffix(db, run))


def start_values(db: Session, name: str) -> dict[str, Any]:
    """Return the settings of a recipe that starts from a model, or continues its adapter.

    Raises:
        InvalidError: It is a checkpoint, or an adapter that cannot be continued.
        NotFoundError: There is none with that name.

    """
    tuned = _parse_tuned_name(db, name)
    if tuned is None:
        return {"base_model": name}
    if tuned.step is not None:
        raise InvalidError(
            f"{name} is a checkpoint: it can answer, but training cannot start from it.",
            hint=f"Start from {tuned.model}, or from its base model.",
            param="model",
        )
    try:
        return continuation.start_values(tuned.run)
    except InvalidError as error:
        error.param = "model"
        raise


def delete(db: Session, runs: Path, name: str) -> None:
    """Move the run of a fine-tuned model to the trash, from which it can be restored.

    Raises:
        ConflictError: It is a base model, a checkpoint or an endpoint, or an endpoint serves it.
        NotFoundError: There is none with that name.

    """
    if endpoints.find_by_name(db, name):
        raise ConflictError(f"{name} is an endpoint.", hint="Delete it on the Serve page.")
    tuned = _parse_tuned_name(db, name)
    if tuned is None:
        get(db, runs, name)
        raise ConflictError(
            f"{name} is a base model.", hint="Remove it on the studio's Models page."
        )
    if tuned.step is not None:
        raise ConflictError(
            f"{name} is a checkpoint, and is deleted with its run.", hint=f"Delete {tuned.model}."
        )
    owners.require(db, "runs", [tuned.run.id or 0])
    bulk_actions.move_to_trash(db, [tuned.run.id or 0])


def job_suffix(db: Session, run: Run) -> str:
    job = db.get(OpenAIJob, run.id)
    return job.suffix if job else ""


def _parse_tuned_name(db: Session, name: str) -> _TunedModel | None:
    """Parse the name of a fine-tuned model; return None for other names.

    Raises:
        NotFoundError: There is no such run, or it has not succeeded.

    """
    if not name.startswith("ft:"):
        return None
    match = _TUNED.fullmatch(name)
    run = db.get(Run, int(match["run"])) if match else None
    if match is None or run is None or run.deleted_at:
        raise _not_found_error(name)
    if match["model"] != tuned_model_name(run, job_suffix(db, run)):
        raise _not_found_error(name)
    if run.status is not RunStatus.SUCCEEDED:
        raise _not_found_error(
            name, "Its run has not succeeded; its models are available once it has."
        )
    return _TunedModel(run, match["model"], int(match["step"]) if match["step"] else None)


def _checkpoint_dir(runs: Path, tuned: _TunedModel, step: int) -> Path:
    """Return the folder of a checkpoint.

    Raises:
        NotFoundError: It was not kept.

    """
    folder = RunDir(runs / str(tuned.run.id)).checkpoints
    kept_steps = [checkpoint.step for checkpoint in artifacts.list_checkpoints(folder)]
    if step not in kept_steps:
        steps = (
            f", or a step that was kept: {', '.join(map(str, kept_steps))}" if kept_steps else ""
        )
        raise _not_found_error(
            f"{tuned.model}:ckpt-step-{step}",
            f"The checkpoint of step {step} was not kept. Use {tuned.model}{steps}.",
        )
    return folder / f"checkpoint-{step}"


def _endpoint_info(endpoint: Endpoint) -> ModelInfo:
    return ModelInfo(name=endpoint.name, created_at=endpoint.created_at)


def _tuned_info(run: Run, suffix: str) -> ModelInfo:
    return ModelInfo(
        name=tuned_model_name(run, suffix), created_at=run.finished_at or run.created_at
    )


def _not_found_error(name: str, hint: str = "GET /v1/models lists them.") -> NotFoundError:
    error = NotFoundError(f"The model {name[:200]} does not exist.", hint=hint, param="model")
    error.code = "model_not_found"
    return error
