"""Attempts that workers on other machines train: claimed, followed and closed as those of this one.

Leases are the studio's, by its own clock. Times of events come from the other machine's clock, and
are corrected by how much it differs at the call that brings them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pydantic import ValidationError
from sqlmodel import Session

import studio
from studio.db.session import current_time
from studio.db.states import RunCommand, RunStatus
from studio.db.tables import FailingStep, Run, Worker
from studio.errors import ConflictError, InvalidError, StudioError
from studio.hardware import Hardware
from studio.protocols.events import Event, Failed
from studio.protocols.remote_worker import (
    FENCED,
    Assignment,
    AttemptEnd,
    AttemptRef,
    ClaimRequest,
    Heartbeat,
    HeartbeatAnswer,
    OwnedAttempt,
    Stream,
    StreamAnswer,
    shift_for_clock,
)
from studio.protocols.run_dir import RunDir
from studio.services.evaluations import automatic
from studio.services.hardware import gpu_health
from studio.services.models import models
from studio.services.queue import queue
from studio.services.queue.gpu_pools import GpuPools
from studio.services.remote import folders
from studio.services.runs import attempts, run_commands, run_dirs, runs
from studio.services.runs.attempts import REMOTE_LEASE, AttemptOwner, LeaseLostError
from studio.services.storage import atomic_dirs
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.services.trackers import trackers
from studio.services.workers import workers
from studio.settings import Settings

_RECORD_EVERY = timedelta(seconds=5)
"""How often heartbeats are written down: each commit wakes every open page."""


class FencedError(ConflictError):
    """The attempt is no longer the worker's: it kills its process."""

    code = FENCED


def require_owned(db: Session, worker: str, run_id: int, attempt: int) -> Run:
    """Return the run if the attempt is still the worker's.

    Raises:
        FencedError: another worker has it, or it has ended.
        NotFoundError: there is no such run.

    """
    try:
        return attempts.require_owned(db, run_id, AttemptOwner(worker, attempt))
    except LeaseLostError as error:
        raise FencedError(
            f"Attempt {attempt} of run {run_id} no longer belongs to {worker}.",
            hint="It was taken over or has ended, so this worker stops it.",
        ) from error


def check_version(version: str) -> None:
    """Reject a worker of another version, whose recipes and events may differ.

    Raises:
        ConflictError: it has another version.

    """
    if version != studio.__version__:
        raise ConflictError(
            f"The worker has version {version[:40]}, and the studio {studio.__version__}.",
            hint="Install the studio's version on the worker's machine.",
        )


def heartbeat(db: Session, worker: str, beat: Heartbeat) -> HeartbeatAnswer:
    """Record that a worker is alive, and extend the leases of what it trains.

    Raises:
        ConflictError: it has another version.

    """
    check_version(beat.version)
    known, at = db.get(Worker, worker), current_time(db)
    is_due = known is None or abs(at - known.beat_at) >= _RECORD_EVERY
    if is_due:
        row = Worker(name=worker, pid=0, slots=beat.slots, beat_at=at)
        row.hardware = workers.HARDWARE_ADAPTER.dump_python(_hardware(beat.hardware), mode="json")
        row.failing, row.failures = _failing_steps(beat, at), beat.failures
        workers.heartbeat(db, row)
    owned = []
    for ref in beat.attempts:
        if run := _find_owned(db, worker, ref):
            if is_due and run.status.is_live:
                run.lease_until = attempts.lease_end(db, REMOTE_LEASE)
            if beat.is_draining and run.status.is_live:
                run_commands.drain(db, ref.run_id)
            owned.append(_describe_owned(run, ref))
    quarantined = dict(gpu_health.list_quarantined(db))
    return HeartbeatAnswer(attempts=owned, quarantined_gpus=quarantined)


def _find_owned(db: Session, worker: str, ref: AttemptRef) -> Run | None:
    run = db.get(Run, ref.run_id)
    is_owned = run is not None and (run.worker, run.attempt) == (worker, ref.attempt)
    return run if is_owned else None


def _describe_owned(run: Run, ref: AttemptRef) -> OwnedAttempt:
    command = (run.asked or RunCommand.CANCEL) if run.status is RunStatus.STOPPING else None
    return OwnedAttempt(**ref.model_dump(), command=command.value if command else None)


def _failing_steps(beat: Heartbeat, at: datetime) -> list[FailingStep]:
    known = (step for step in beat.failing if step.step in workers.STEP_FAILURES)
    return [FailingStep(**step.model_dump(), since=at) for step in known]


def _hardware(described: dict[str, object]) -> Hardware:
    try:
        return workers.HARDWARE_ADAPTER.validate_python(described)
    except ValidationError as error:
        raise InvalidError("The hardware cannot be read.", param="hardware") from error


def close_silent(db: Session, worker: str) -> None:
    """Close the attempts of all other workers on other machines whose lease has expired."""
    for run in attempts.list_abandoned(db, worker, alone=False):
        attempts.close_silent(db, run)


def is_work_waiting(db: Session, worker: str, request: ClaimRequest) -> bool:
    """Whether a claim may find something; takes no write lock."""
    if queue.next_run(db) or _unheld(db, worker, request):
        return True
    return bool(attempts.list_abandoned(db, worker, alone=False))


def claim(db: Session, settings: Settings, worker: str, request: ClaimRequest) -> Assignment | None:
    """Claim the next run, and write its folder; return None if nothing can start.

    A run whose claim was not answered, or twice, is answered again.

    Raises:
        ConflictError: the worker has another version.

    """
    check_version(request.version)
    hardware = _hardware(request.hardware)
    if run := _unheld(db, worker, request):
        return _assignment(run)
    pools = None
    if request.free_gpus is not None:
        pools = GpuPools(hardware=hardware, free=request.free_gpus)
    slots = (worker, request.slots, REMOTE_LEASE)
    run = queue.claim(db, *slots, excluded=request.held, pools=pools)
    if run is None or not _prepare(db, run, settings, hardware):
        return None
    return _assignment(run)


def _unheld(db: Session, worker: str, request: ClaimRequest) -> Run | None:
    return next((run for run in _live(db, worker) if run.id not in request.held), None)


def _live(db: Session, worker: str) -> Iterable[Run]:
    return (run for run in runs.list_live(db) if run.worker == worker)


def _assignment(run: Run) -> Assignment:
    return Assignment(
        run_id=run.id or 0,
        attempt=run.attempt,
        gpu=run.gpu,
        slots=run.slots,
        packages=sorted(run.recipe.packages),
    )


def _prepare(db: Session, run: Run, settings: Settings, hardware: Hardware) -> bool:
    """Write the run's folder. If that fails, so does the run; return whether it succeeded."""
    folder = run_folder(settings, run)
    given = tuple(gpu for gpu in hardware.gpus if gpu.index == run.gpu)
    try:
        with db.begin_nested(), atomic_dirs.explain_disk_full():
            machine = replace(hardware, gpus=given) if given else hardware
            runs.recheck_precision(db, run, machine)
            if run.attempt == 1:
                trackers.add_defaults(db, run, settings)
            run_dirs.write_run_dir(db, run, folder, settings)
            folders.discard_incoming(folder)
    except (StudioError, OSError) as error:
        failure = run_dirs.launch_error(error)
        _fail(db, run, Failed(code=failure.code, message=failure.message, hint=failure.hint))
        return False
    return True


def _fail(db: Session, run: Run, failure: Failed) -> None:
    attempts.fail(db, run, failure)
    attempts.close_exited(db, run, ProcessExit())


def run_folder(settings: Settings, run: Run) -> RunDir:
    return RunDir(settings.runs / str(run.id))


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Bytes of a stream, from an offset."""

    name: Stream
    offset: int
    data: bytes
    clock: datetime
    """What the clock of the worker's machine says."""


def append(db: Session, settings: Settings, run: Run, part: StreamPart) -> StreamAnswer:
    """Append the next bytes of a stream, and apply the events that are complete.

    Raises:
        DiskFullError: the disk is full.

    """
    folder = run_folder(settings, run)
    path = folder.events.path if part.name == "events" else folder.log
    with atomic_dirs.explain_disk_full(), path.open("ab", buffering=0) as file:
        size = file.tell()
        is_next = part.offset == size
        remaining = memoryview(part.data if is_next else b"")
        while remaining:
            remaining = remaining[file.write(remaining) :]
        offset = file.tell()
    if part.name == "events":
        shift = timedelta(seconds=shift_for_clock(part.clock, current_time(db)))
        _apply_events(db, settings, run, shift)
    return StreamAnswer(offset=offset, is_accepted=is_next)


def _apply_events(db: Session, settings: Settings, run: Run, shift: timedelta) -> None:
    folder, old_status = run_folder(settings, run), run.status
    events, offset = folder.events.read(run.events_offset)
    if offset > run.events_offset:
        attempts.apply_events(db, run, _shifted(events, shift), offset)
    if run.status is RunStatus.SUCCEEDED and old_status is not run.status:
        models.add_from_run(db, run, folder.artifacts)
        automatic.queue_for_run(db, settings, run)


def _shifted(events: Iterable[Event], shift: timedelta) -> Iterable[Event]:
    return (event.model_copy(update={"at": event.at + shift}) for event in events)


def end(db: Session, settings: Settings, run: Run, ended: AttemptEnd) -> None:
    """Close an attempt whose process is gone."""
    if ended.failure is not None:
        attempts.fail(db, run, Failed(**ended.failure.model_dump()))
    facts = ended.model_dump(exclude={"failure"})
    attempts.close_exited(db, run, ProcessExit(**facts))
    folders.discard_incoming(run_folder(settings, run))


def deregister(db: Session, worker: str) -> None:
    """Remove a worker that has left; what it still trains keeps its lease."""
    workers.deregister(db, worker)
