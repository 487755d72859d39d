"""What a run left in its folder: its log, and the files that are the reason it was made."""

from dataclasses import dataclass
from pathlib import Path

from studio.errors import NotFoundError
from studio.redaction import redact

TAIL_BYTES = 256 * 1024
"""How far back the last lines of a log are looked for, and the most that one answer holds."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    name: str
    """Its path inside the run's artifacts, with slashes."""
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
    """Return the run's files; none before it has succeeded. Links are left out."""
    if not folder.is_dir():
        return []
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [
        ArtifactFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files
    ]


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints that were written to their end, newest first."""
    found = (path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal())
    whole = [
        Checkpoint(path.name, int(path.name[11:]), sum(file.bytes for file in list_files(path)))
        for path in found
    ]
    return sorted(whole, key=lambda one: -one.step)


def find_file(folder: Path, name: str) -> Path:
    """Return the path of one of the listed files; no other path can be named."""
    if name not in {file.name for file in list_files(folder)}:
        raise NotFoundError(f"This run has no file {name}.", hint="See the list of its artifacts.")
    return folder / name


def read_log(log: Path, after: int | None, limit: int) -> LogChunk:
    """Return whole lines after a byte offset, or the last lines when there is none."""
    if not log.exists():
        return LogChunk([], 0)
    size = log.stat().st_size
    start = max(0, size - TAIL_BYTES) if after is None else min(after, size)
    with log.open("rb") as file:
        file.seek(start)
        whole, newline, _half = file.read(TAIL_BYTES).rpartition(b"\n")
    if after is None:
        lines = whole.split(b"\n")[-limit:] if newline else []
        return LogChunk([clean_line(line) for line in lines], start + len(whole) + len(newline))
    lines = whole.split(b"\n")[:limit] if newline else []
    return LogChunk(
        [clean_line(line) for line in lines], start + sum(len(line) + 1 for line in lines)
    )


def clean_line(line: bytes) -> str:
    """Show a line as terminals do: of overwritten text the last, no control codes, no secrets."""
    shown = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return redact("".join(sign for sign in shown if sign.isprintable() or sign == "\t"))
