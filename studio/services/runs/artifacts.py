"""Read what a run wrote to its folder: its log, its artifacts and its checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from studio.errors import NotFoundError
from studio.redaction import redact

TAIL_BYTES = 256 * 1024
"""How far back the last lines of a log are searched, and the most one response returns."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    name: str
    """Path relative to the run's artifacts, with forward slashes."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    step: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    lines: list[str]
    next_offset: int


def list_files(folder: Path) -> list[ArtifactFile]:
    """Return the run's files, none before it has succeeded. Symbolic links are skipped."""
    if not folder.is_dir():
        return []
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [
        ArtifactFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files
    ]


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the completely written checkpoints, newest first."""
    paths = (path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal())
    checkpoints = [
        Checkpoint(path.name, int(path.name[11:]), sum(file.bytes for file in list_files(path)))
        for path in paths
    ]
    return sorted(checkpoints, key=lambda one: -one.step)


def find_file(folder: Path, name: str) -> Path:
    """Return the path of a listed file.

    Raises:
        NotFoundError: the run has no such file. Other paths cannot be reached.

    """
    if name not in {file.name for file in list_files(folder)}:
        raise NotFoundError(
            f"This run has no file {name}.", hint="Check the run's list of artifacts."
        )
    return folder / name


def read_log(log: Path, after: int | None, limit: int) -> LogChunk:
    """Return complete lines after a byte offset, or the last lines if `after` is None."""
    if not log.exists():
        return LogChunk([], 0)
    size = log.stat().st_size
    start = max(0, size - TAIL_BYTES) if after is None else min(after, size)
    with log.open("rb") as file:
        file.seek(start)
        complete, newline, _partial = file.read(TAIL_BYTES).rpartition(b"\n")
    if after is None:
        lines = complete.split(b"\n")[-limit:] if newline else []
        return LogChunk([clean_line(line) for line in lines], start + len(complete) + len(newline))
    lines = complete.split(b"\n")[:limit] if newline else []
    return LogChunk(
        [clean_line(line) for line in lines], start + sum(len(line) + 1 for line in lines)
    )


def clean_line(line: bytes) -> str:
    """Return a line as a terminal shows it, without overwritten text, control codes or secrets."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return redact("".join(char for char in text if char.isprintable() or char == "\t"))
