"""How a worker on another machine and the studio talk: JSON and bytes over HTTP.

The worker calls; the studio never does. Each call names the worker and the attempt, and the studio
refuses it once the attempt belongs to somebody else. Calls may be lost, late or repeated: streams
are appended at an offset, files are named by their hash, and all else can be said twice.
"""

import re
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from studio.schemas.field_docs import FieldDocs

NAME_PREFIX = "remote-"
"""What the names of workers on other machines begin with."""

NAME_PATTERN = r"^remote-[a-z0-9-]{1,80}$"

CHUNK_BYTES = 2**20
"""How much of a stream or a file one call sends; the studio accepts four times as much."""

MAX_FILES = 20_000
"""The most files of a folder that is sent as one."""

MAX_ATTEMPTS = 1000
"""The most attempts of one worker."""

INPUT_PREFIX = "studio-input:"
"""In a job: a path among its input files, such as `studio-input:model`."""

RUN_ROOT = "run"
"""The folder of the run, among its input files."""

FENCED = "fenced"
"""The code of the error that an attempt belongs to another worker, or has ended."""

BUSY = "busy"
"""The code of the error that an earlier request still writes to the file."""

Stream = Literal["events", "log"]
"""A file of the run that grows while it trains."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:]")


def is_remote(worker: str) -> bool:
    """Whether a worker of that name is on another machine."""
    return worker.startswith(NAME_PREFIX)


def check_path(path: str) -> str:
    """Return a relative path with forward slashes that cannot leave its folder.

    Raises:
        ValueError: it is no such path.

    """
    parts = path.split("/")
    if _UNSAFE.search(path) or any(part in {"", ".", ".."} for part in parts):
        raise ValueError("must be a relative path inside its folder")
    return str(PurePosixPath(*parts))


FilePath = Annotated[str, StringConstraints(max_length=500), AfterValidator(check_path)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Bytes = Annotated[int, Field(ge=0, lt=2**50)]
RunNumber = Annotated[int, Field(ge=1, lt=2**63)]
AttemptNumber = Annotated[int, Field(ge=1, lt=2**31)]
CheckpointName = Annotated[str, StringConstraints(pattern=r"^checkpoint-[0-9]{1,18}$")]
TargetName = Annotated[
    str,
    StringConstraints(
        pattern=r"^(artifacts|tokenizer|checkpoints/checkpoint-[0-9]{1,18}"
        r"|rollouts\.jsonl|adapter_start\.safetensors)$"
    ),
]
"""What a worker sends to the run's folder: a folder, or one file."""


class _WireModel(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AttemptRef(_WireModel):
    run_id: RunNumber
    attempt: AttemptNumber


class FailingWorkerStep(_WireModel):
    """What a worker cannot do at present."""

    step: Annotated[str, StringConstraints(max_length=40)]
    subject: Annotated[str, StringConstraints(max_length=100)]
    error: Annotated[str, StringConstraints(max_length=100)]


class Heartbeat(_WireModel):
    version: Annotated[str, StringConstraints(max_length=40)]
    """The version of the worker's studio, which must be that of the studio."""
    slots: Annotated[int, Field(ge=1, le=1024)]
    hardware: dict[str, Any]
    """Its `studio.hardware.Hardware`."""
    failing: Annotated[list[FailingWorkerStep], Field(max_length=100)] = []
    failures: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """How many steps have failed since it started."""
    attempts: Annotated[list[AttemptRef], Field(max_length=MAX_ATTEMPTS)] = []
    """What it trains; the leases of these are extended."""
    is_draining: bool = False
    """Whether its runs are to write a checkpoint and return to the queue."""


class OwnedAttempt(AttemptRef):
    command: Literal["cancel", "pause", "keep", "drain"] | None = None
    """What the run is asked for."""


class HeartbeatAnswer(_WireModel):
    attempts: list[OwnedAttempt]
    """Those that are still the worker's own. It ends all others."""
    quarantined_gpus: dict[str, str]
    """Why GPUs are kept from runs, by their names for CUDA."""


class ClaimRequest(_WireModel):
    version: Annotated[str, StringConstraints(max_length=40)]
    slots: Annotated[int, Field(ge=1, le=1024)]
    hardware: dict[str, Any]
    free_gpus: Annotated[list[int], Field(max_length=1024)] | None = None
    """The indexes of the GPUs that a run may take, the least used first; null without GPUs."""
    held: Annotated[list[RunNumber], Field(max_length=MAX_ATTEMPTS)] = []
    """The runs that it trains already: a run whose claim was answered in vain is answered again."""


class Assignment(AttemptRef):
    """A run for a worker to train."""

    gpu: int | None
    slots: int
    packages: list[str]
    """The optional packages that the recipe needs."""


class ClaimAnswer(_WireModel):
    assignment: Assignment | None
    """Null if nothing can start now."""


class RemoteFile(_WireModel):
    path: FilePath
    sha256: Sha256
    bytes: Bytes


class RunFiles(_WireModel):
    """What a run needs on the machine that trains it."""

    job: str
    """The job as JSON, with `studio-input:` in the place of folders."""
    recipe: str
    """The recipe as YAML."""
    files: list[RemoteFile]
    log_offset: int
    """How long the run's log is: what the worker writes comes after it."""


class StreamAnswer(_WireModel):
    offset: int
    """How many bytes the studio has: where the next part begins."""
    is_accepted: bool
    """Whether this part was the next one; if not, nothing was appended."""


class FolderRequest(_WireModel):
    """A folder to put in place once all its files have arrived."""

    name: TargetName
    files: Annotated[list[RemoteFile], Field(min_length=1, max_length=MAX_FILES)]
    checkpoints: Annotated[list[CheckpointName], Field(max_length=1000)] | None = None
    """The checkpoints that the run still keeps: others are deleted. Null deletes none."""


class MissingFile(_WireModel):
    sha256: Sha256
    offset: int
    """How many bytes of it have arrived."""


class FolderAnswer(_WireModel):
    missing: list[MissingFile]
    """Empty if the folder is in place."""


class UploadAnswer(_WireModel):
    offset: int
    """How many bytes have arrived; 0 if they were not those of the hash, and were dropped."""
    is_whole: bool


class LaunchFailure(_WireModel):
    """Why an attempt was not launched."""

    code: Annotated[str, StringConstraints(max_length=60)]
    message: Annotated[str, StringConstraints(max_length=2000)]
    hint: Annotated[str, StringConstraints(max_length=2000)] = ""


class AttemptEnd(_WireModel):
    """How the process of an attempt ended; sent after all that it wrote."""

    exit_code: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    out_of_memory: bool = False
    hung: bool = False
    rebooted: bool = False
    disk_full: bool = False
    last_line: Annotated[str, StringConstraints(max_length=2000)] = ""
    failure: LaunchFailure | None = None


class EndAnswer(_WireModel):
    status: str
    """The status of the run."""


def shift_for_clock(clock: datetime, now: datetime) -> float:
    """Return the seconds to add to times of a clock that says `clock` at `now`.

    A difference that the network alone can make counts as none.
    """
    seconds = (now - clock).total_seconds()
    return seconds if abs(seconds) > _SAME_CLOCK_SECONDS else 0.0


_SAME_CLOCK_SECONDS = 2.0
