"""Record which model the inference service has loaded: a row that exists as long as its process."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.tasks import LoadedModel
from studio.protocols.inference_service import InferenceStatus
from studio.services.models import loaded_model
from studio.worker.socket_services.socket_activation import SocketService

WRITE_SECONDS = 1.0
"""Minimum time between writes: answers may be short and frequent."""


@dataclass(slots=True)
class LoadedModelStatus:
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
