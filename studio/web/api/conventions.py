"""What all REST routes share: the route class, conditional requests, and schemas."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session

from studio.db.states import RunCommand, RunStatus
from studio.db.tables import Experiment, Run
from studio.errors import StaleError
from studio.methods import AnyRecipe
from studio.protocols.run_dir import RunDir
from studio.schemas.field_docs import FieldDocs
from studio.schemas.validation_errors import accepts_list
from studio.services.estimates import run_progress
from studio.services.queue import overview, queue
from studio.services.queue.overview import Wait
from studio.services.runs import failure_report
from studio.web.http import idempotency

CREATED, ACCEPTED = 201, 202

NEVER_STORED = {"x-never-kept": True}
"""`openapi_extra` of a route whose response holds a secret: never stored for replay."""


class ApiRoute(APIRoute):
    """A route of the REST API."""

    @property
    def creates_resource(self) -> bool:
        """Whether the route creates something and honours an Idempotency-Key."""
        makes = "POST" in (self.methods or ()) and self.status_code in {CREATED, ACCEPTED}
        return makes and self.openapi_extra != NEVER_STORED

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        parameters = {
            parameter.alias: accepts_list(parameter.field_info)
            for parameter in get_flat_params(self.dependant)
        }

        async def answer(request: Request) -> Response:
            _check_query(request, parameters)
            if self.creates_resource:
                return await idempotency.respond_once(request, handle)
            return await handle(request)

        return answer


def _check_query(request: Request, parameters: Mapping[str, bool]) -> None:
    """Reject unknown and repeated query parameters: a script would get wrong rows unnoticed.

    `known` maps each parameter to whether it may be repeated.
    """
    counts = Counter(name for name, _value in request.query_params.multi_items())
    unknown = [_query_error("extra_forbidden", name) for name in counts if name not in parameters]
    repeated = [
        _query_error("given_twice", name)
        for name, count in counts.items()
        if count > 1 and not parameters.get(name, True)
    ]
    if unknown or repeated:
        raise RequestValidationError(unknown + repeated)


def _query_error(kind: str, name: str) -> dict[str, Any]:
    message = "Given more than once; send one value."
    return {"type": kind, "loc": ("query", name), "msg": message, "input": None}


IfMatch = Annotated[str | None, Header(max_length=1000)]


class Etag:
    """The ETag of a resource: a hash of its editable fields, without those that change alone."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def set_header(self, *facts: Any) -> None:  # noqa: ANN401 -- any field values
        self._response.headers["ETag"] = _hash_facts(facts)


class EtagCondition(Etag):
    """The ETag of a resource that is about to change."""

    def __init__(self, response: Response, if_match: IfMatch = None) -> None:
        """Take the ETag from when the resource was read; without one, no check is made."""
        super().__init__(response)
        self._if_match = if_match

    def check(self, *facts: Any) -> None:  # noqa: ANN401 -- any field values
        """Reject a change to a resource that has changed since it was read.

        Raises:
            StaleError: The resource has changed.

        """
        if self._if_match is None or self._if_match.strip() == "*":
            return
        # A proxy that compresses the response may have made the ETag weak.
        etags = {etag.strip().removeprefix("W/") for etag in self._if_match.split(",")}
        if _hash_facts(facts) not in etags:
            raise StaleError(
                "Someone else has changed this since you read it.",
                hint="Read it again, then apply your change to the current version.",
                param="If-Match",
            )


def _hash_facts(facts: tuple[Any, ...]) -> str:
    text = json.dumps(facts, default=str, sort_keys=True)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


EtagResponse = Annotated[Etag, Depends(Etag)]
EtagPrecondition = Annotated[EtagCondition, Depends(EtagCondition)]


T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=500)]
After = Annotated[int | None, Query(ge=0, lt=2**63)]
Id = Annotated[int, Path(ge=1, lt=2**63)]
"""The id of a resource."""
BodyId = Annotated[int, Field(ge=1, lt=2**63)]
"""The id of a resource in a request body."""
Name = Annotated[str, Field(min_length=1, max_length=200)]
Notes = Annotated[str, Field(max_length=100_000)]
Source = Annotated[str, Field(pattern=r"^((run|experiment):\d{1,18})?$")]
"""A run or an experiment, such as `run:12`; or empty."""


class Body(FieldDocs, BaseModel):
    """A request body: unknown fields are rejected, and types are not coerced."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Out(BaseModel):
    """A response body. Non-finite numbers are sent as strings."""

    model_config = ConfigDict(from_attributes=True, ser_json_inf_nan="strings")


class Listing(Out, Generic[T]):
    """One page of a list, newest first."""

    data: list[T]
    has_more: bool
    next_after: int | None

    @classmethod
    def complete(cls, rows: Iterable[Any]) -> Self:
        """Return a list that fits on one page, of items or of rows with their attributes."""
        return cls.model_validate({"data": list(rows), "has_more": False, "next_after": None})


class ErrorOut(Out):
    """Why a run failed."""

    code: str
    """One of the codes in `docs/failures.md`."""
    message: str
    """The cause, in one sentence."""
    hint: str
    phase: str
    """What the run was doing, such as loading, training or saving."""
    step: int
    attempt: int
    exit_code: int | None
    """Of the run's process: negative for a signal, null if unknown."""
    signal: str
    """The name of the signal that ended the process; empty if none did."""


class FixOut(Out):
    """A recipe change that may fix the run: send it as `overrides` to the run's `again`."""

    title: str
    change: dict[str, Any]


class ErrorDetailOut(ErrorOut):
    log: list[str]
    """The last lines of the run's log."""
    repairs: list[FixOut]


class Phases(Out):
    """How long each phase took."""

    queued_seconds: float | None
    launch_seconds: float | None
    first_step_seconds: float | None
    total_seconds: float | None


TRANSIENT_FIELDS = {"eta_seconds", "total_seconds"}
"""Fields of a run that change with time alone, so a change in them is not sent to streams."""


class RunBrief(Out):
    """The fields that change while a run trains."""

    id: int
    name: str
    status: RunStatus
    attempt: int
    asked: RunCommand | None
    """The pending command, until it is done."""
    checkpoint_step: int | None
    """The step it can resume from."""
    phase: str
    step: int
    total_steps: int | None
    epoch: float
    tokens: int
    progress: float | None
    eta_seconds: float | None
    total_seconds: float | None
    """From when a worker claimed it until it finished, or until now."""
    queue_position: int | None
    priority: int
    is_held: bool
    metrics: dict[str, float]
    error: ErrorOut | None


class ChosenPrecision(Out):
    """The precision of a recipe, and who chose it."""

    name: str
    chosen_by: Literal["user", "studio"]
    """`studio` if the recipe omits the precision or sets it to `auto`."""
    reason: str
    """Why the studio chose it; empty if a user did."""


class RunOut(RunBrief):
    """A run with everything except its curves."""

    experiment_id: int
    sweep_id: int | None
    recipe: AnyRecipe
    precision: ChosenPrecision
    resolved: dict[str, Any]
    phases: Phases
    notes: str
    tags: list[str]
    archived_at: datetime | None
    deleted_at: datetime | None
    """When it was moved to the trash; it is permanently deleted some weeks later."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class WaitingOut(Out):
    """Why a run or task is waiting."""

    reason: str
    since: datetime
    starts_in_seconds: float | None
    """Estimated; null if unknown."""


class RunDetailOut(RunOut):
    """A run with details about its failure or why it is waiting."""

    error: ErrorDetailOut | None
    waiting: WaitingOut | None


def waiting_out(wait: Wait | None) -> WaitingOut | None:
    if wait is None:
        return None
    return WaitingOut(reason=wait.reason, since=wait.since, starts_in_seconds=wait.seconds)


def make_page(rows: Sequence[Any], limit: int, shown: Sequence[T]) -> Listing[T]:
    """Make a page of at most `limit` rows; one extra row signals that there are more."""
    has_more = len(rows) > limit
    next_after = rows[limit - 1].id if has_more else None
    return Listing(data=list(shown[:limit]), has_more=has_more, next_after=next_after)


def run_brief(db: Session, run: Run) -> RunBrief:
    return run_briefs(db, [run])[0]


def run_briefs(db: Session, listed: Sequence[Run]) -> list[RunBrief]:
    positions = queue.positions(db, listed)
    return [
        RunBrief.model_validate(_brief_fields(db, run, positions.get(run.id))) for run in listed
    ]


def run_out(db: Session, run: Run) -> RunOut:
    details = {
        "experiment_id": run.experiment_id,
        "sweep_id": run.sweep_id,
        "recipe": run.recipe,
        "precision": chosen_precision(run),
        "resolved": run.resolved,
        "phases": run_progress.measure(run),
        "notes": run.notes,
        "tags": run.tags,
        "archived_at": run.archived_at,
        "deleted_at": run.deleted_at,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }
    return RunOut.model_validate(_brief_fields(db, run, queue.position(db, run)) | details)


def chosen_precision(row: Run | Experiment) -> ChosenPrecision:
    return ChosenPrecision(
        name=row.recipe.precision,
        chosen_by="studio" if row.precision_reason else "user",
        reason=row.precision_reason,
    )


def failed_run_out(db: Session, run: Run, folder: RunDir) -> RunDetailOut:
    failure = failure_report.explain(db, run)
    fields = run_out(db, run).model_dump()
    fields["waiting"] = waiting_out(overview.estimate_wait(db, run))
    if failure is not None:
        fields["error"] |= {
            "log": failure_report.log_tail(folder),
            "repairs": [asdict(repair) for repair in failure_report.list_fixes(db, run, failure)],
        }
    return RunDetailOut.model_validate(fields)


def _error_fields(db: Session, run: Run) -> dict[str, Any] | None:
    failure = failure_report.explain(db, run)
    return asdict(failure) | {"code": failure.kind.code} if failure else None


def _brief_fields(db: Session, run: Run, position: int | None) -> dict[str, Any]:
    progress = run_progress.measure(run)
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "attempt": run.attempt,
        "asked": run.asked,
        "checkpoint_step": run.checkpoint_step,
        "phase": run.phase,
        "step": run.step,
        "total_steps": run.total_steps,
        "epoch": run.epoch,
        "tokens": run.tokens,
        "progress": progress.share,
        "eta_seconds": progress.eta_seconds,
        "total_seconds": progress.total_seconds,
        "queue_position": position,
        "priority": run.priority,
        "is_held": run.is_held,
        "metrics": run.metrics,
        "error": _error_fields(db, run),
    }
