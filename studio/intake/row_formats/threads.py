"""Threads: rows that name the row before them, joined into conversations from root to leaf.

Any row may follow any other, so all of them must be known before one conversation is whole. What
is held is bounded, and a file beyond the bound is refused in words.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from studio.errors import TooLargeError
from studio.intake.mapping import Mapping
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow
from studio.intake.row_formats.cell_text import MappedRow, to_text
from studio.intake.row_formats.conversations import system_turns, thread_turns
from studio.intake.row_formats.schema import (
    ConversationRow,
    Turn,
    UnusableRowError,
    validate_conversation,
)

MAX_THREAD_BYTES = 128 * 2**20
"""The most that the rows of threads may come to: their characters, and what each row costs."""
_ROW_BYTES = 1000


@dataclass(frozen=True, slots=True)
class _Node:
    number: int
    parent: str
    turns: list[Turn]
    system: list[Turn]


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation from its first row to its last."""

    number: int
    """The number of its last row."""
    rows: list[int]
    """The numbers of all of its rows."""
    root: str
    """The id of its first row: branches of one tree have it in common."""
    row: ConversationRow | UnusableRowError


@dataclass(slots=True)
class ThreadJoiner:
    """Rows of a file, taken one by one and given back as conversations."""

    mapping: Mapping
    held_bytes: int = MAX_THREAD_BYTES
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _size: int = 0

    def add(self, row: RawRow) -> None:
        """Take a row.

        Raises:
            UnusableRowError: it cannot be part of a thread.
            TooLargeError: there are more rows than can be held.

        """
        cells = MappedRow(self.mapping, row.values)
        name = row_id(cells.value("id"))
        if not name or name in self._nodes:
            raise UnusableRowError(ProblemCode.REPEATED_ID)
        turns, system = thread_turns(cells), system_turns(cells, self.mapping.system)
        self._size += _ROW_BYTES + sum(len(turn["content"]) for turn in (*turns, *system))
        if self._size > self.held_bytes:
            raise _too_large_error(self.held_bytes)
        self._nodes[name] = _Node(row.number, row_id(cells.value("parent")), turns, system)

    def __iter__(self) -> Iterator[Thread]:
        """Yield every conversation, and every row that is part of none with the reason."""
        fates = self._chain_problems()
        unanswered = self._unanswered()
        inner = {found.parent for name, found in self._nodes.items() if name not in unanswered}
        for name, found in self._nodes.items():
            code = fates[name] or (ProblemCode.MISSING_ANSWER if name in unanswered else None)
            number = found.number
            if code is not None:
                yield Thread(number, [number], name, UnusableRowError(code))
            elif name not in inner:
                yield self._thread(name)

    def _chain_problems(self) -> dict[str, ProblemCode | None]:
        """Tell of each row whether going up from it ends at a beginning, or why not."""
        fates: dict[str, ProblemCode | None] = {}
        for start in self._nodes:
            path: dict[str, None] = {}
            at = start
            while at in self._nodes and at not in fates and at not in path:
                path[at] = None
                at = self._nodes[at].parent
            unknown = ProblemCode.ORPHAN if at else None
            fate = ProblemCode.CYCLE if at in path else fates.get(at, unknown)
            fates.update(dict.fromkeys(path, fate))
        return fates

    def _unanswered(self) -> set[str]:
        """Return the rows that ask and that no answer follows, nor any row with one."""
        children = Counter(found.parent for found in self._nodes.values())
        found: set[str] = set()
        for leaf in [name for name in self._nodes if not children[name]]:
            name = leaf
            while name in self._nodes and not children[name] and self._asks(name):
                found.add(name)
                name = self._nodes[name].parent
                children[name] -= 1
        return found

    def _asks(self, name: str) -> bool:
        return self._nodes[name].turns[-1]["role"] != "assistant"

    def _thread(self, name: str) -> Thread:
        chain = [self._nodes[name]]
        root = name
        while chain[-1].parent:
            root = chain[-1].parent
            chain.append(self._nodes[root])
        chain.reverse()
        turns = [*chain[0].system, *(turn for found in chain for turn in found.turns)]
        rows = [found.number for found in chain]
        try:
            return Thread(rows[-1], rows, root, {"messages": validate_conversation(turns)})
        except UnusableRowError as error:
            return Thread(rows[-1], rows, root, error)


def row_id(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return an id as text. A column with gaps makes 7.0 of a whole number."""
    name = to_text(value).strip()
    whole_number = name.removesuffix(".0")
    return whole_number if whole_number.isdecimal() else name


def _too_large_error(limit: int) -> TooLargeError:
    return TooLargeError(
        f"The threads come to more than {limit / 2**20:.3g} MB, and all of their rows must be "
        "known before one conversation is whole.",
        hint="Split the file by whole threads, or join the turns of each beforehand.",
        param="file",
    )
