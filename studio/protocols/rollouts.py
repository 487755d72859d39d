"""The answers that a run learned from, with their scores: written by it, shown by the web.

A file of JSON lines in the run's folder, one for each prompt of each step. A line is complete when
it ends in a newline.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Stage = Literal["training", "validation"]

MAX_ANSWER_CHARS = 20_000
"""Longer answers are kept in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """One answer and its score."""

    text: str
    reward: float | None
    """None if it could not be scored."""
    parts: dict[str, float | None]
    """What each part of a `multi` grader gave, by name."""
    messages: list[str]
    """What graders said of errors, and of scores that were clipped."""
    tokens: int
    is_cut_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """All answers to one prompt at one step."""

    step: int
    stage: Stage
    row: int
    """The row's number in its part of the dataset, counted from one."""
    prompt: str
    answers: list[AnswerRecord]

    def to_line(self) -> str:
        """Return the record as a line of the file, which `read_place` reads the beginning of."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


_LINE_START = re.compile(
    rf'{{"step": (\d{{1,18}}), "stage": "({"|".join(get_args(Stage))})"'.encode()
)


def read_place(line: bytes) -> tuple[Stage, int] | None:
    """Return the stage and the step of a line without parsing it; None if it is not a record."""
    match = _LINE_START.match(line)
    if match is None:
        return None
    stage: Stage = "training" if match[2] == b"training" else "validation"
    return stage, int(match[1])
