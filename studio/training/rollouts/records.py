"""Keeps the answers that a run learned from, with their scores, for people to read."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from studio import files
from studio.protocols.rollouts import GroupRecord


class RolloutLog:
    """Appends to the file, and removes what a resumed run will write again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, groups: Iterable[GroupRecord]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(group.to_line() for group in groups))

    def cut(self, step: int) -> None:
        """Keep what was written up to a step of training, and no line that was not finished."""
        if self._path.exists():
            kept = (line for line, group in _read_lines(self._path) if group["step"] <= step)
            files.replace_text(self._path, "".join(kept))


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield line, json.loads(line)
