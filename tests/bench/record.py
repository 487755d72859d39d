"""Figures that were measured, kept by commit: `bench/COMMIT.json`, one object for each part.

What a working tree with changes gave belongs to no commit, and is not kept.
"""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.measurement import Measurement

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench"


@dataclass(slots=True)
class Record:
    """What was measured at one commit."""

    commit: str
    day: str
    parts: dict[str, list[Measurement]] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    """The machine of each part: parts may be measured on different ones."""

    def add(self, part: str, machine: str, figures: Iterable[Measurement]) -> None:
        """Keep what a part measured, instead of what it measured before."""
        self.parts[part] = list(figures)
        self.machines[part] = machine


def current_commit(root: Path = ROOT) -> str | None:
    """Return the first digits of the commit in use, or None if a file of it has changed."""
    if _git(root, "status", "--porcelain", "--", ".", ":!bench", ":!docs"):
        return None
    return _git(root, "rev-parse", "--short=12", "HEAD")


def load(commit: str, folder: Path = FOLDER) -> Record:
    """Return what was measured at a commit: nothing, if there is no file of it."""
    path = folder / f"{commit}.json"
    if not path.exists():
        return Record(commit, datetime.now(UTC).date().isoformat())
    return _read(path)


def load_all(folder: Path = FOLDER) -> list[Record]:
    """Return everything that was measured, the oldest day first."""
    return sorted(map(_read, folder.glob("*.json")), key=lambda one: (one.day, one.commit))


def save(record: Record, folder: Path = FOLDER) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{record.commit}.json"
    path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    return path


def _read(path: Path) -> Record:
    kept = json.loads(path.read_text("utf-8"))
    parts = {
        name: [Measurement(**figure) for figure in figures]
        for name, figures in kept["parts"].items()
    }
    return Record(kept["commit"], kept["day"], parts, kept["machines"])


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],  # noqa: S607 -- developers have their own git
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
