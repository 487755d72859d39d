"""Join threads, whose rows refer to their parent row, into conversations from root to leaf.

Rows may come in any order, so all must be read before a conversation is complete. The memory used
is bounded; a larger file is refused.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from studio.errors import TooLargeError
from studio.intake.mapping import Mapping
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow
from studio.intake.row_formats.message_formats import MappedRow, to_text
from studio.intake.row_formats.row_builder import system_turns, thread_turns
from studio.intake.row_formats.schema import (
    ConversationRow,
    Turn,
    UnusableRowError,
    validate_conversation,
)

MAX_THREAD_BYTES = 128 * 2**20
"""Maximum size of the rows of threads: their characters plus an overhead per row."""
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
    """The id of its first row, which all branches of a tree share."""
    row: ConversationRow | UnusableRowError


@dataclass(slots=True)
class ThreadJoiner:
    """Collects rows one by one and yields them as conversations."""

    mapping: Mapping
    held_bytes: int = MAX_THREAD_BYTES
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _size: int = 0

    def add(self, row: RawRow) -> None:
        """Add a row.

        Raises:
            UnusableRowError: the row cannot be part of a thread.
            TooLargeError: the rows exceed the memory limit.

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
        """Yield every conversation, and every row that belongs to none with the reason."""
        problems = self._chain_problems()
        unanswered = self._unanswered()
        inner = {node.parent for name, node in self._nodes.items() if name not in unanswered}
        for name, node in self._nodes.items():
            code = problems[name] or (ProblemCode.MISSING_ANSWER if name in unanswered else None)
            number = node.number
            if code is not None:
                yield Thread(number, [number], name, UnusableRowError(code))
            elif name not in inner:
                yield self._thread(name)

    def _chain_problems(self) -> dict[str, ProblemCode | None]:
        """Return for each row why its chain of parents has no start, or None."""
        problems: dict[str, ProblemCode | None] = {}
        for start in self._nodes:
            path: dict[str, None] = {}
            name = start
            while name in self._nodes and name not in problems and name not in path:
                path[name] = None
                name = self._nodes[name].parent
            unknown = ProblemCode.ORPHAN if name else None
            problem = ProblemCode.CYCLE if name in path else problems.get(name, unknown)
            problems.update(dict.fromkeys(path, problem))
        return problems

    def _unanswered(self) -> set[str]:
        """Return the questions that no answer follows, directly or further down."""
        children = Counter(unanswered.parent for unanswered in self._nodes.values())
        unanswered: set[str] = set()
        for leaf in [name for name in self._nodes if not children[name]]:
            name = leaf
            while name in self._nodes and not children[name] and self._asks(name):
                unanswered.add(name)
                name = self._nodes[name].parent
                children[name] -= 1
        return unanswered

    def _asks(self, name: str) -> bool:
        return self._nodes[name].turns[-1]["role"] != "assistant"

    def _thread(self, name: str) -> Thread:
        chain = [self._nodes[name]]
        root = name
        while chain[-1].parent:
            root = chain[-1].parent
            chain.append(self._nodes[root])
        chain.reverse()
        turns = [*chain[0].system, *(turn for node in chain for turn in node.turns)]
        rows = [node.number for node in chain]
        try:
            return Thread(rows[-1], rows, root, {"messages": validate_conversation(turns)})
        except UnusableRowError as error:
            return Thread(rows[-1], rows, root, error)


def row_id(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return an id as text. A column with gaps turns the integer 7 into 7.0."""
    name = to_text(value).strip()
    whole_number = name.removesuffix(".0")
    return whole_number if whole_number.isdecimal() else name


def _too_large_error(limit: int) -> TooLargeError:
    return TooLargeError(
        f"The threads exceed {limit / 2**20:.3g} MB, and all of their rows must be loaded to "
        "build conversations.",
        hint="Split the file without splitting threads, or convert each thread to messages first.",
        param="file",
    )
