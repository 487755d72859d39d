"""The worker's side of the inference service: it occupies a slot, but yields it to waiting runs.

It starts when a client connects and a slot is free; otherwise the client is refused and may try
again. Once a run or other work waits for its slot, it finishes its current answer and exits.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tasks import LoadedModel
from studio.protocols import inference_service
from studio.protocols.inference_service import GenerationChunk, InferenceStatus
from studio.protocols.tokenizer_service import ServiceFailure
from studio.services.models import loaded_model
from studio.services.queue.wait_reasons import Blocker
from studio.settings import Settings
from studio.worker.socket_services.socket_activation import SocketService

WRITE_SECONDS = 1.0
"""Minimum time between writes: answers may be short and frequent."""


@dataclass(slots=True)
class LoadedModelStatus:
    """Records which model is loaded: a row that exists as long as the service's process."""

    service: SocketService
    idle: timedelta
    _pid: int = 0
    """Pid of the process the row describes; 0 if there is none."""
    _model: str = ""
    _computed_in: str = ""
    _since: datetime = field(default_factory=lambda: datetime.now(UTC))
    _leaves_at: datetime | None = None
    _written: tuple[object, ...] = ()
    _next_at: float = float("-inf")
    _unread: bytes = b""

    def tick(self, engine: Engine, worker: str) -> None:
        """Record changes, and unload the model if requested."""
        child = self.service.child
        pid = child.pid if child is not None and self.service.is_running else 0
        if pid != self._pid:
            self._reset(engine, worker, pid)
        if not pid:
            return
        self._read_updates()
        self._write(engine, worker)
        with read_session(engine) as db:
            if loaded_model.is_unload_requested(db, worker):
                self.service.request_exit()

    def _reset(self, engine: Engine, worker: str, pid: int) -> None:
        with unit_of_work(engine) as db:
            loaded_model.clear(db, worker)
        self._pid, self._model, self._computed_in, self._unread = pid, "", "", b""
        self._since, self._leaves_at = datetime.now(UTC), None
        self._written, self._next_at = (), float("-inf")

    def _read_updates(self) -> None:
        *lines, self._unread = (self._unread + self.service.read_updates()).split(b"\n")
        for line in lines:
            try:
                update = InferenceStatus.model_validate_json(line)
            except ValidationError:
                continue  # A partial line, because the whole one could not be written.
            if update.name != self._model:
                self._computed_in = ""
            self._model, self._computed_in = update.name, update.computed_in or self._computed_in
            self._leaves_at = None if update.is_answering else datetime.now(UTC) + self.idle

    def _write(self, engine: Engine, worker: str) -> None:
        state = (self._model, self._computed_in, self._leaves_at, self.service.is_leaving)
        if state == self._written or time.monotonic() < self._next_at:
            return
        with unit_of_work(engine) as db:
            row = LoadedModel(
                worker=worker,
                model=self._model,
                computed_in=self._computed_in,
                since=self._since,
                leaves_at=self._leaves_at,
                is_leaving=self.service.is_leaving,
            )
            loaded_model.save_status(db, row)
        self._written, self._next_at = state, time.monotonic() + WRITE_SECONDS


def no_slot_failure(blocker: Blocker | None) -> ServiceFailure:
    """Return the failure for a refused request: what occupies the slot, and for how long."""
    reason = blocker.reason if blocker else "waiting for a run to end"
    minutes = math.ceil((blocker.seconds or 0) / 60) if blocker else 0
    duration = f", in about {minutes} min" if minutes else ""
    return ServiceFailure(
        code="no_free_slot",
        message=f"No slot is free for inference: {reason}{duration}.",
        hint="Try again later, or start the studio with more slots: STUDIO_SLOTS.",
    )


@dataclass(slots=True)
class InferenceService:
    settings: Settings
    service: SocketService = field(init=False)
    status: LoadedModelStatus = field(init=False)

    def __post_init__(self) -> None:
        idle = str(self.settings.answer_idle_seconds)
        self.service = SocketService(
            inference_service.socket_path(self.settings.home), inference_service.MODULE, (idle,)
        )
        self.status = LoadedModelStatus(
            self.service, timedelta(seconds=self.settings.answer_idle_seconds)
        )

    @property
    def slots(self) -> int:
        """How many slots it occupies that a run could use."""
        return loaded_model.SLOTS_USED * self.service.is_running

    @property
    def gpus(self) -> set[int | None]:
        return {self.service.gpu} if self.service.is_running else set()

    def tick(
        self,
        free_slots: Callable[[], int],
        free_gpu: Callable[[], int | None],
        obstacle: Callable[[], Blocker | None],
    ) -> None:
        """Start the service for waiting clients, or refuse them; never blocks."""
        while self.service.has_clients():
            if free_slots() > 0:
                self.service.gpu = free_gpu()
                self.service.start()
            else:
                self.service.reject(GenerationChunk(failure=no_slot_failure(obstacle())).to_line())

    def release_slot(self) -> None:
        """Make the service exit after its current answer."""
        self.service.request_exit()

    def close(self) -> None:
        """Kill the service, even during an answer: the worker is exiting."""
        self.service.close()
