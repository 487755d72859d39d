"""Read the answers that a run learned from, with their scores, step by step.

The file may have many gigabytes in the end, and grows while it is read. An index remembers where
the lines of each step are, and is extended by what was written since.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import BinaryIO, Literal

from pydantic import TypeAdapter, ValidationError

from studio.db.tables import Run
from studio.errors import NotFoundError
from studio.methods.rollouts import RolloutRecipe
from studio.protocols.rollouts import AnswerRecord, GroupRecord, Stage, read_place
from studio.protocols.run_dir import RunDir

MAX_STEP_BYTES = 16 * 2**20
"""Of a longer step, only the first prompts are read."""

_TAIL_BYTES = 256
"""The end of the indexed part is compared to see whether the file is still the same."""

Order = Literal["row", "best", "worst", "longest"]
ORDERS: dict[Order, str] = {
    "row": "In order",
    "best": "Best first",
    "worst": "Worst first",
    "longest": "Longest first",
}

ALARMS = frozenset({"no_spread", "grader_failed", "answers_cut_off", "kl_runaway", "reward_hacked"})
"""Codes of alarms that reading the answers explains."""

_parse = TypeAdapter[GroupRecord](GroupRecord).validate_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where the answers of one step are in the file."""

    number: int
    stage: Stage
    prompts: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Group:
    """The answers to one prompt, in an order, and how they compare."""

    record: GroupRecord
    answers: Sequence[AnswerRecord]

    @property
    def scores(self) -> list[float]:
        """The scores of answers that have one."""
        return [answer.reward for answer in self.answers if answer.reward is not None]

    @property
    def mean(self) -> float | None:
        return fmean(self.scores) if self.scores else None

    @property
    def is_flat(self) -> bool:
        """Whether several answers score alike, so that nothing is learned from them."""
        return len(self.scores) > 1 and min(self.scores) == max(self.scores)


@dataclass(slots=True)
class RolloutIndex:
    """Where each step is in a file, as far as it has been read."""

    path: Path
    steps: dict[tuple[Stage, int], Step] = field(default_factory=dict)
    """In the order in which they were written."""
    end: int = 0
    """Where the last complete line ends."""
    _tail: bytes = b""
    """What the file has before `end`."""
    _lock: Lock = field(default_factory=Lock)

    def list_steps(self, stage: Stage) -> list[Step]:
        """Return the steps of a stage that the file has now, oldest first."""
        return [step for step in self._update().values() if step.stage == stage]

    def find_end(self) -> int:
        """Return how many bytes of the file are complete lines."""
        self._update()
        return self.end

    def _update(self) -> dict[tuple[Stage, int], Step]:
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._follow(file)
            except FileNotFoundError:
                self._forget()
            return dict(self.steps)

    def _follow(self, file: BinaryIO) -> None:
        """Read the lines that are new; all of them if the file has been replaced."""
        file.seek(self.end - len(self._tail))
        if file.read(len(self._tail)) != self._tail:
            self._forget()
            file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            if place := read_place(line):
                self._add(place, len(line))
            self.end += len(line)
            self._tail = (self._tail + line)[-_TAIL_BYTES:]

    def _add(self, place: tuple[Stage, int], size: int) -> None:
        """Add a line. If a step is written a second time, that is the one which counts."""
        before = self.steps.get(place)
        if before is None or before.end != self.end:
            self.steps.pop(place, None)
            stage, number = place
            before = Step(number=number, stage=stage, prompts=0, start=self.end, end=self.end)
        self.steps[place] = replace(before, prompts=before.prompts + 1, end=self.end + size)

    def _forget(self) -> None:
        self.steps, self.end, self._tail = {}, 0, b""


def keeps_rollouts(run: Run) -> bool:
    """Return whether a run learns from answers that it writes."""
    return isinstance(run.recipe, RolloutRecipe)


def count_bytes(folder: RunDir) -> int:
    """Return the size of the file in a run's folder; 0 if there is none."""
    try:
        return folder.rollouts.stat().st_size
    except FileNotFoundError:
        return 0


def require(run: Run) -> None:
    """Check that a run learns from answers that it writes.

    Raises:
        NotFoundError: it learns from the data.

    """
    if not keeps_rollouts(run):
        raise NotFoundError(
            f"Run {run.id} has no scored answers.",
            hint="Only runs of reinforcement learning write answers and learn from their scores.",
        )


@lru_cache(maxsize=32)
def open_index(path: Path) -> RolloutIndex:
    """Return the index of a file, which need not exist yet."""
    return RolloutIndex(path)


def nearest(steps: Sequence[Step], number: int | None) -> int:
    """Return the place in a list of the last step up to a number; of the newest one for None."""
    if number is None:
        return len(steps) - 1
    return max(0, sum(step.number <= number for step in steps) - 1)


def read_groups(path: Path, step: Step, most: int = MAX_STEP_BYTES) -> list[GroupRecord]:
    """Return the answers of a step, those to the first prompts if there are very many."""
    try:
        with path.open("rb") as file:
            return list(_read_step(file, step, most))
    except FileNotFoundError:
        return []


def _read_step(file: BinaryIO, step: Step, most: int) -> Iterator[GroupRecord]:
    file.seek(step.start)
    size = 0
    for line in islice(file, step.prompts):
        size += len(line)
        if size > most and size > len(line):
            return
        try:
            group = _parse(line)
        except ValidationError:  # The file has just been replaced.
            return
        if (group.stage, group.step) == (step.stage, step.number):
            yield group


def sort_groups(records: Sequence[GroupRecord], order: Order) -> list[Group]:
    """Return prompts and the answers to each in an order. Answers without a score are the worst."""
    if order == "row":
        return [Group(record, record.answers) for record in records]
    rank = _RANKS[order]
    groups = [Group(record, sorted(record.answers, key=rank)) for record in records]
    return sorted(groups, key=lambda group: min(map(rank, group.answers), default=inf))


def _score(answer: AnswerRecord) -> float:
    return -inf if answer.reward is None else answer.reward


_RANKS: dict[Order, Callable[[AnswerRecord], float]] = {
    "best": lambda answer: -_score(answer),
    "worst": _score,
    "longest": lambda answer: -answer.tokens,
}
