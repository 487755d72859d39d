"""The folders of runs and tasks, which are all that the web and torch processes share."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from studio import files
from studio.protocols.events import EventLog
from studio.protocols.judging import RewardJudge
from studio.schemas.field_docs import FieldDocs

MANIFEST = "manifest.json"


RunCommand = Literal["cancel", "pause", "keep"]
"""Commands to a run that is training; unlike `cancel`, `pause` and `keep` save its weights."""


class DatasetFacts(FieldDocs, BaseModel):
    """The facts that identify a dataset version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str
    """The checksum of the uploaded file."""
    version: int = 1
    """The number of the dataset version."""
    rows_sha256: str = ""
    """The checksum of the rows, with validation rows after training rows."""
    mapping: dict[str, Any] = {}
    """How the columns become rows; the same mapping of the same file gives the same rows."""
    train_rows: int
    """The number of usable training rows."""
    validation_rows: int


class JobSpec(FieldDocs, BaseModel):
    """The paths and facts of a run on this machine, which a recipe only names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: int
    name: str
    model: str
    """A folder, or a name on the hub."""
    train: Path
    """Rows as JSON lines, each `{"messages": [{"role", "content"}, ...]}`."""
    validation: Path | None
    """Rows in the same format; None if a share of `train` is held out."""
    precision_reason: str = ""
    """Why the studio chose the recipe's precision; empty if a user chose it."""
    attempt: int = 1
    """How often the run has been launched, including this time."""
    dataset: DatasetFacts | None = None
    """For the manifest; training needs only the rows."""
    resume: bool = False
    """Whether to resume from the newest complete checkpoint; if not, checkpoints are deleted."""
    code: str = ""
    """The checksum of the model's custom code that may run; empty runs none."""
    teacher: str = ""
    """The model to learn from, besides the data: a folder, or a name on the hub; empty if none."""
    teacher_code: str = ""
    """The checksum of the teacher's custom code that may run; empty runs none."""
    reward_models: dict[str, RewardJudge] = {}
    """The reward models that graders ask while it trains, by their names in graders."""
    adapter: Path | None = None
    """The folder of the adapter to continue from; None starts a new one."""
    python_graders: Literal["sealed", "trusted", "off"] = "sealed"
    """Whether Python graders may run, and how."""
    cache: Path | None = None
    """Where to cache tokenised data for later runs; None disables the cache."""

    @classmethod
    def read(cls, run: "RunDir") -> "JobSpec":
        """Return what the folder of a run says.

        Raises:
            OSError: There is no such file, or it cannot be read.
            ValidationError: It does not describe a run.

        """
        return cls.model_validate_json(run.job.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class WorkDir:
    """The files in the folder of any work that has its own process."""

    root: Path

    @property
    def job(self) -> Path:
        """The work to do: a `JobSpec`, `ExportSpec` or `TaskSpec`."""
        return self.root / "job.json"

    @property
    def events(self) -> EventLog:
        return EventLog(self.root / "events.jsonl")

    @property
    def log(self) -> Path:
        """The output of the process."""
        return self.root / "log.txt"


@dataclass(frozen=True, slots=True)
class RunDir(WorkDir):
    @property
    def recipe(self) -> Path:
        """The recipe as YAML, with each setting's help as a comment."""
        return self.root / "recipe.yaml"

    @property
    def command(self) -> Path:
        """The command to the run, a `RunCommand` written before SIGTERM.

        A missing file means cancel.
        """
        return self.root / "ask"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def adapter_start(self) -> Path:
        """The adapter before training, if it started as a part of the base model's weights."""
        return self.root / "adapter_start.safetensors"

    @property
    def rollouts(self) -> Path:
        """The answers that the run learned from, with their scores."""
        return self.root / "rollouts.jsonl"

    @property
    def parent_adapter(self) -> Path:
        """A copy of the adapter that the run continues from: its weights and config."""
        return self.root / "parent_adapter"

    @property
    def tokenizer(self) -> Path:
        """The run's own tokenizer, if it adds tokens to that of its base model."""
        return self.root / "tokenizer"

    def write_exit_code(self, pid: int, code: int) -> None:
        """Record the exit code of a process, for processes that cannot wait for it."""
        files.replace_text(self._exit, json.dumps({"pid": pid, "code": code}))

    def read_exit_code(self, pid: int) -> int | None:
        """Return the recorded exit code of a process, or None if there is none."""
        # A file in another format, or a folder in its place, counts as missing.
        with suppress(OSError, ValueError, KeyError, TypeError):
            record: dict[str, int] = json.loads(self._exit.read_text(encoding="utf-8"))
            return record["code"] if record["pid"] == pid else None
        return None

    @property
    def _exit(self) -> Path:
        return self.root / "exit.json"

    @property
    def lock(self) -> Path:
        """The lock of the process that trains the run; contains its PID and start time."""
        return self.root / "runner.lock"

    @property
    def artifacts(self) -> Path:
        """The result of the run: the trained model or adapter, its tokenizer and model card."""
        return self.root / "artifacts"

    @property
    def manifest(self) -> Path:
        """The manifest: everything needed to reproduce and verify the run."""
        return self.artifacts / MANIFEST

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    @property
    def trackers(self) -> Path:
        """What has been sent to which tracker: one file for each."""
        return self.root / "trackers"

    def export(self, export_id: int) -> "ExportDir":
        return ExportDir(self.exports / str(export_id))


@dataclass(frozen=True, slots=True)
class ExportDir(WorkDir):
    """The folder of one export of a run's model, inside the run's folder."""

    @property
    def files(self) -> Path:
        """The exported files; the folder is complete or absent."""
        return self.root / "files"

    @property
    def merged(self) -> Path:
        """The adapter and its base merged into one float32 model, during conversion."""
        return self.root / "merged"
