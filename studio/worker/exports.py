"""Exports, as the worker makes them: one process each, in slots that no run waits for."""

import logging
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import reading, unit_of_work
from studio.db.tables import Export
from studio.errors import StudioError, UnavailableError
from studio.events import Failed
from studio.recipe.exports import ExportSpec
from studio.rundir import ExportDir, RunDir
from studio.services import exports, folders
from studio.settings import Settings
from studio.worker import process
from studio.worker.process import Process

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Followed:
    """An export whose process this worker watches."""

    run_id: int
    process: Process
    gpu: int | None


@dataclass(slots=True)
class Exports:
    engine: Engine
    settings: Settings
    command: tuple[str, ...] = process.EXPORTER
    followed: dict[int, Followed] = field(default_factory=dict)

    @property
    def gpus(self) -> set[int | None]:
        return {followed.gpu for followed in self.followed.values()}

    def adopt(self) -> None:
        """Take over what an earlier worker left: live processes, and those that are gone."""
        with unit_of_work(self.engine) as db:
            for export in exports.live(db):
                alive = process.found(export.pid, export.pid_started)
                if alive:
                    followed = Followed(export.run_id, alive, export.gpu)
                    self.followed[_id(export)] = followed
                else:
                    self._read(export)
                    exports.settle(export, None)

    def follow(self) -> None:
        """Bring every export up to date, and end those that were deleted."""
        for export_id, followed in list(self.followed.items()):
            # Asked before reading: what a process says last is in the file before it is gone.
            alive = followed.process.is_alive
            with reading(self.engine) as db:
                export = db.get(Export, export_id)
            if export is None:
                self._end(export_id, followed)
            elif not alive or self._has_news(export):
                self._update(export_id, followed, alive=alive)

    def take_next(self, gpu: int | None) -> bool:
        """Start the next export that waits. Return whether there was one."""
        with reading(self.engine) as db:
            if not exports.waiting(db):
                return False
        with unit_of_work(self.engine) as db:
            export = next(iter(exports.waiting(db)), None)
            if export is not None:
                exports.begin(export)
                self._launch(db, export, gpu)
        return export is not None

    def _launch(self, db: Session, export: Export, gpu: int | None) -> None:
        try:
            folder = self._prepare(export)
            started = process.start(folder, gpu=gpu, command=self.command)
        except (StudioError, OSError) as error:
            told = error if isinstance(error, StudioError) else UnavailableError(f"{error}.")
            log.exception("export_not_launched", extra={"export_id": export.id})
            exports.fail(export, Failed(code=told.code, message=told.message, hint=told.hint))
            return
        export.pid, export.pid_started, export.gpu = started.pid, started.started, gpu
        self.followed[_id(export)] = Followed(export.run_id, started, gpu)
        db.flush()

    def _prepare(self, export: Export) -> ExportDir:
        """Lay out an empty folder: of an earlier try nothing is left."""
        run = RunDir(self.settings.runs / str(export.run_id))
        folder = run.export(_id(export))
        with folders.room(), folders.staged(run.exports) as stage:
            spec = ExportSpec.model_validate(
                {"run": run.root, "kind": export.kind, "dtype": export.dtype}
            )
            (stage / folder.job.name).write_text(spec.model_dump_json(indent=2), encoding="utf-8")
            folders.place(stage, folder.root)
        return folder

    def _update(self, export_id: int, followed: Followed, *, alive: bool) -> None:
        with unit_of_work(self.engine) as db:
            export = db.get(Export, export_id)
            if export is None:
                return
            self._read(export)
            if not alive:
                exports.settle(export, followed.process.exit_code)
        if not alive:
            del self.followed[export_id]
            log.info("export_ended", extra={"export_id": export_id, "status": export.status.value})

    def _end(self, export_id: int, followed: Followed) -> None:
        """End the process of an export that was deleted, and take away what it wrote since."""
        if followed.process.is_alive:
            followed.process.kill()
            return
        del self.followed[export_id]
        with reading(self.engine) as db:
            kept = {str(one.id) for one in exports.of_run(db, followed.run_id)}
        folders.sweep(RunDir(self.settings.runs / str(followed.run_id)).exports, kept)

    def _has_news(self, export: Export) -> bool:
        events = self._folder(export).events.path
        return events.exists() and events.stat().st_size > export.events_offset

    def _read(self, export: Export) -> None:
        exports.follow(export, *self._folder(export).events.read(export.events_offset))

    def _folder(self, export: Export) -> ExportDir:
        return RunDir(self.settings.runs / str(export.run_id)).export(_id(export))


def _id(export: Export) -> int:
    assert export.id is not None  # noqa: S101 -- a row that was never flushed is a bug of ours
    return export.id
