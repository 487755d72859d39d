"""The work that a worker has done besides runs: exports and chores, and which of it comes first."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlmodel import Session

from studio.chores import FILES, KINDS, ChoreDir, ChoreSpec
from studio.db.session import unit_of_work
from studio.db.work import Chore, Export
from studio.events import Event
from studio.recipe.exports import ExportSpec
from studio.rundir import ExportDir, RunDir
from studio.services import chores, endings, exports, secrets, stats
from studio.settings import Settings
from studio.worker import process
from studio.worker.isolation import Isolation
from studio.worker.workshop import Workshop

LIGHT = 2
"""How many chores that need no device are done at once."""


@dataclass(frozen=True, slots=True)
class Exporting:
    settings: Settings
    table: type[Export] = Export

    def name(self, _export: Export) -> str:
        return exports.WORD

    def folder(self, export: Export) -> ExportDir:
        return RunDir(self.settings.runs / str(export.run_id)).export(export.id or 0)

    def spec(self, export: Export) -> ExportSpec:
        run = RunDir(self.settings.runs / str(export.run_id))
        about = {"run": run.root, "kind": export.kind, "dtype": export.dtype}
        return ExportSpec.model_validate(about)

    def needs_device(self, _export: Export) -> bool:
        return True

    def secrets(self, _db: Session, _export: Export) -> dict[str, str]:
        return {}

    def follow(self, _db: Session, export: Export, events: list[Event], offset: int) -> None:
        exports.follow(export, events, offset)

    def told(self, _db: Session, _export: Export) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Choring:
    settings: Settings
    table: type[Chore] = Chore

    def name(self, chore: Chore) -> str:
        return chore.kind

    def folder(self, chore: Chore) -> ChoreDir:
        return chores.folder(self.settings.chores, chore)

    def spec(self, chore: Chore) -> ChoreSpec:
        return ChoreSpec(kind=chore.kind, params=chore.params)

    def needs_device(self, chore: Chore) -> bool:
        return chores.needs_device(chore)

    def secrets(self, db: Session, chore: Chore) -> dict[str, str]:
        names = KINDS[chore.kind].needs(chore.params)
        return secrets.given(db, self.settings, names).revealed(names) if names else {}

    def follow(self, _db: Session, chore: Chore, events: list[Event], offset: int) -> None:
        chores.follow(chore, events, offset, self.folder(chore))

    def told(self, db: Session, chore: Chore) -> AbstractContextManager[None]:
        return endings.told(db, chore)


@dataclass(frozen=True, slots=True)
class Commands:
    """What does the work; it is given the folder to do it in."""

    export: tuple[str, ...] = process.EXPORTER
    chore: tuple[str, ...] = process.CHORE


class Trades:
    """Every kind of work besides runs."""

    def __init__(
        self, engine: Engine, settings: Settings, isolation: Isolation, commands: Commands
    ) -> None:
        self.isolation = isolation
        about = (engine, settings)
        self.exports = Workshop(*about, Exporting(settings), isolation, commands.export)
        self.chores = Workshop(*about, Choring(settings), isolation, commands.chore, (FILES,))

    @property
    def gpus(self) -> set[int | None]:
        return self.exports.gpus | self.chores.gpus

    @property
    def slots(self) -> int:
        """How many slots are taken that a run could have."""
        return self.exports.slots + self.chores.slots

    def wanted(self, db: Session) -> int:
        """Return how many slots the next work waits for that a run could have."""
        return int(any(shop.waits(db, on_device=True) for shop in (self.exports, self.chores)))

    def adopt(self) -> None:
        """Take over from an earlier worker; it is alone on its folder, so it may tidy up, too."""
        self.exports.adopt()
        self.chores.adopt()
        with self.isolation.step("tidy"), unit_of_work(self.chores.engine) as db:
            stats.tidy(db)
            chores.tidy(db, self.chores.settings.chores)

    def follow(self) -> None:
        self.exports.follow()
        self.chores.follow()

    def take(self, has_slot: Callable[[], int], gpu: Callable[[], int | None]) -> None:
        """Start what there is room for. Training goes first: here is what no run waits for."""
        for shop in (self.exports, self.chores):
            with self.isolation.step("start", f"{shop.noun}s on a device"):
                while has_slot() and shop.take_next(gpu(), on_device=True):
                    pass
        with self.isolation.step("start", "tasks"):
            while self._light < LIGHT and self.chores.take_next(on_device=False):
                pass

    @property
    def _light(self) -> int:
        return len(self.chores.followed) - self.chores.slots
