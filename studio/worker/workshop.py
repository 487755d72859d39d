"""Work that a process of its own does in a folder: started, followed, adopted, ended."""

import logging
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel
from sqlalchemy import Engine
from sqlmodel import Session, select

from studio.db.session import reading, unit_of_work
from studio.db.states import WorkStatus
from studio.db.work import Work
from studio.errors import StudioError, UnavailableError
from studio.events import Event, Failed
from studio.rundir import WorkDir
from studio.services import folders, work
from studio.services.obituaries import End
from studio.settings import Settings
from studio.worker import process
from studio.worker.followed import witnessed
from studio.worker.process import Process

log = logging.getLogger(__name__)

W = TypeVar("W", bound=Work)


class Trade(Protocol[W]):
    """What tells one kind of work from another."""

    @property
    def table(self) -> type[W]: ...

    def name(self, work: W) -> str:
        """Say what it is called in a sentence: "export"."""

    def folder(self, work: W) -> WorkDir: ...

    def spec(self, work: W) -> BaseModel:
        """Return what its process is to do."""

    def needs_device(self, work: W) -> bool:
        """Whether it takes a slot that a run could have."""

    def secrets(self, db: Session, work: W) -> dict[str, str]:
        """Return what its process finds in its environment, of what is nobody else's business.

        Raises:
            UnavailableError: it cannot be read.

        """

    def follow(self, db: Session, work: W, events: list[Event], offset: int) -> None:
        """Bring it up to date with what its process has said."""

    def told(self, db: Session, work: W) -> AbstractContextManager[None]:
        """Tell whom it concerns if it ends meanwhile."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Work whose process this worker watches."""

    process: Process
    folder: WorkDir
    gpu: int | None
    on_device: bool


@dataclass(slots=True)
class Workshop(Generic[W]):
    engine: Engine
    settings: Settings
    trade: Trade[W]
    command: tuple[str, ...]
    keeps: tuple[str, ...] = ()
    """What another try finds of the one before, by name."""
    followed: dict[int, Followed] = field(default_factory=dict)

    @property
    def gpus(self) -> set[int | None]:
        return {one.gpu for one in self.followed.values()}

    @property
    def slots(self) -> int:
        """How many of the slots are taken that a run could have."""
        return sum(one.on_device for one in self.followed.values())

    def adopt(self) -> None:
        """Take over what an earlier worker left: live processes, and those that are gone."""
        with unit_of_work(self.engine) as db:
            for one in work.live(db, self.trade.table):
                alive = process.found(one.pid, one.pid_started)
                if alive:
                    self._watch(one, alive)
                else:
                    self._catch_up(db, one, End())

    def follow(self) -> None:
        """Bring all work up to date, and end what was deleted or called off."""
        for work_id, followed in list(self.followed.items()):
            # Asked before reading: what a process says last is in the file before it is gone.
            alive = followed.process.is_alive
            with reading(self.engine) as db:
                one = db.get(self.trade.table, work_id)
            if one is None or one.status is WorkStatus.CANCELLED:
                self._end(work_id, followed)
            elif not alive or _has_news(one, followed.folder):
                self._update(work_id, followed, alive=alive)

    def take_next(self, gpu: int | None = None, *, on_device: bool) -> bool:
        """Start the next work that waits for a device, or for none. Return whether there was."""
        with reading(self.engine) as db:
            if not self.waits(db, on_device=on_device):
                return False
        with unit_of_work(self.engine) as db:
            one = self._next(db, on_device=on_device)
            if one is not None:
                work.begin(one)
                self._launch(db, one, gpu)
        return one is not None

    def waits(self, db: Session, *, on_device: bool) -> bool:
        """Whether there is work that waits for a device, or for none."""
        return self._next(db, on_device=on_device) is not None

    def _next(self, db: Session, *, on_device: bool) -> W | None:
        waiting = work.waiting(db, self.trade.table)
        # What was told to stop and waits again does so until its first process is gone.
        free = (one for one in waiting if _id(one) not in self.followed)
        return next((one for one in free if self.trade.needs_device(one) is on_device), None)

    def _launch(self, db: Session, one: W, gpu: int | None) -> None:
        try:
            folder = self._prepare(one)
            started = process.start(
                folder,
                gpu=gpu,
                command=self.command,
                besides=self.settings.environment | self.trade.secrets(db, one),
            )
        except (StudioError, OSError) as error:
            told = error if isinstance(error, StudioError) else UnavailableError(f"{error}.")
            log.exception("work_not_launched", extra=self._about(one))
            why = Failed(code=told.code, message=told.message, hint=told.hint)
            with self.trade.told(db, one):
                work.fail(one, why)
            return
        one.pid, one.pid_started, one.gpu = started.pid, started.started, gpu
        self._watch(one, started)
        db.flush()

    def _watch(self, one: W, started: Process) -> None:
        on_device = self.trade.needs_device(one)
        self.followed[_id(one)] = Followed(started, self.trade.folder(one), one.gpu, on_device)

    def _prepare(self, one: W) -> WorkDir:
        """Lay out the folder: of an earlier try nothing is left but what is kept."""
        folder = self.trade.folder(one)
        with folders.room(), folders.staged(folder.root.parent) as stage:
            spec = self.trade.spec(one).model_dump_json(indent=2)
            (stage / folder.job.name).write_text(spec, encoding="utf-8")
            for name in self.keeps:
                if (folder.root / name).exists():
                    (folder.root / name).replace(stage / name)
            folders.place(stage, folder.root)
        return folder

    def _update(self, work_id: int, followed: Followed, *, alive: bool) -> None:
        with unit_of_work(self.engine) as db:
            one = db.get(self.trade.table, work_id)
            if one is None:
                return
            end = None if alive else End(exit_code=followed.process.exit_code)
            self._catch_up(db, one, end)
        if not alive:
            del self.followed[work_id]
            log.info("work_ended", extra=self._about(one))

    def _catch_up(self, db: Session, one: W, end: End | None) -> None:
        folder = self.trade.folder(one)
        with self.trade.told(db, one):
            self.trade.follow(db, one, *folder.events.read(one.events_offset))
            if end is not None:
                work.settle(one, witnessed(folder, end), self.trade.name(one))

    def _end(self, work_id: int, followed: Followed) -> None:
        """End the process of what nobody wants any more, and take away what it wrote since."""
        if followed.process.is_alive:
            followed.process.kill()
            return
        with unit_of_work(self.engine) as db:
            if one := db.get(self.trade.table, work_id):
                work.settle(one, End(), self.trade.name(one))
            kept = {str(one_id) for one_id in db.exec(select(self.trade.table.id))}
        del self.followed[work_id]
        shutil.rmtree(followed.folder.root, ignore_errors=True)
        folders.sweep(followed.folder.root.parent, kept)

    def _about(self, one: W) -> dict[str, object]:
        return {"work": self.trade.name(one), "id": one.id, "status": one.status.value}


def _has_news(one: Work, folder: WorkDir) -> bool:
    events = folder.events.path
    return events.exists() and events.stat().st_size > one.events_offset


def _id(one: Work) -> int:
    assert one.id is not None  # noqa: S101 -- a row that was never flushed is a bug of ours
    return one.id
