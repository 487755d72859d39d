"""The folders of runs and other work: the only thing the web side and the torch side share."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from studio.protocols.events import EventLog
from studio.schemas.field_docs import FieldDocs

MANIFEST = "manifest.json"


RunCommand = Literal["cancel", "pause", "keep"]
"""What can be asked of a run that trains. Both of the others keep what it has learnt."""


class DatasetFacts(FieldDocs, BaseModel):
    """What tells a data set from every other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str
    """Of the file as it was brought."""
    version: int = 1
    """Which reading of the file."""
    rows_sha256: str = ""
    """Of the rows, those to validate on behind the others."""
    mapping: dict[str, Any] = {}
    """How the file was read: the same reading of the same file gives the same rows."""
    train_rows: int
    """Usable ones."""
    validation_rows: int


class JobSpec(FieldDocs, BaseModel):
    """What the recipe's names mean on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: int
    name: str
    model: str
    """A folder, or a name on the hub."""
    train: Path
    """Rows as JSON lines, each `{"messages": [{"role", "content"}, ...]}`."""
    validation: Path | None
    """Rows of the same kind; None when a share of `train` is to be held back."""
    precision_reason: str = ""
    """Why the studio chose the recipe's precision; empty where a user did."""
    attempt: int = 1
    """How often the run has been launched, this time included."""
    dataset: DatasetFacts | None = None
    """For the manifest; training needs the rows alone."""
    resume: bool = False
    """Whether to go on from the newest whole checkpoint. If not, those there are go."""
    code: str = ""
    """The hash of the model's own code that was allowed to run; empty runs none."""
    cache: Path | None = None
    """Where tokenised data is kept for the next run; None keeps none."""


@dataclass(frozen=True, slots=True)
class WorkDir:
    """What is in the folder of any work that a process of its own does."""

    root: Path

    @property
    def job(self) -> Path:
        """What to do, in terms of this machine: a `JobSpec`, `ExportSpec` or `ChoreSpec`."""
        return self.root / "job.json"

    @property
    def events(self) -> EventLog:
        return EventLog(self.root / "events.jsonl")

    @property
    def log(self) -> Path:
        """Whatever the process prints."""
        return self.root / "log.txt"


@dataclass(frozen=True, slots=True)
class RunDir(WorkDir):
    @property
    def recipe(self) -> Path:
        """What to train, with each knob's help above it."""
        return self.root / "recipe.yaml"

    @property
    def command(self) -> Path:
        """What is asked of the run.

        An `RunCommand`, written before SIGTERM is sent. None is a cancel.
        """
        return self.root / "ask"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def write_exit_code(self, pid: int, code: int) -> None:
        """Say with which code a process ended, for whoever could not wait for it."""
        new = self._exit.with_suffix(".new")
        new.write_text(json.dumps({"pid": pid, "code": code}), encoding="utf-8")
        new.replace(self._exit)

    def read_exit_code(self, pid: int) -> int | None:
        """Return the code with which a process ended, or None if nobody has left it here."""
        # A file of another's making, or a folder in its place, tells as little as none.
        with suppress(OSError, ValueError, KeyError, TypeError):
            left: dict[str, int] = json.loads(self._exit.read_text(encoding="utf-8"))
            return left["code"] if left["pid"] == pid else None
        return None

    @property
    def _exit(self) -> Path:
        return self.root / "exit.json"

    @property
    def lock(self) -> Path:
        """Held by the process that trains the run; names it by its pid and when it began."""
        return self.root / "runner.lock"

    @property
    def artifacts(self) -> Path:
        """What the run is for: the trained model or adapter, its tokenizer, its card."""
        return self.root / "artifacts"

    @property
    def manifest(self) -> Path:
        """All it takes to repeat the run, and to trust it."""
        return self.artifacts / MANIFEST

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    def export(self, export_id: int) -> "ExportDir":
        return ExportDir(self.exports / str(export_id))


@dataclass(frozen=True, slots=True)
class ExportDir(WorkDir):
    """The folder of one export of a run's model, inside the run's own."""

    @property
    def files(self) -> Path:
        """What is handed out. It is there whole, or not at all."""
        return self.root / "files"

    @property
    def merged(self) -> Path:
        """Where an adapter and its base lie as one float32 model while they are converted."""
        return self.root / "merged"
