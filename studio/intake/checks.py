"""What is suspicious in a whole data set: counted, with the numbers of the rows, said in words.

Rows pass one after the other; what is kept of each is two hashes of eight bytes, so a file of
millions of rows needs megabytes.
"""

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from studio.intake.suspicions import SUSPICIONS, answer, script

Part = Literal["train", "validation"]

SHOWN = 20
"""How many rows are named; the count is always whole."""

_FEW = 50
"""Different answers up to which they are classes that a model tells apart."""
_ENOUGH = 20
"""Rows from which shares mean something."""
_UNEVEN = 20
"""How many times the rarest class the most frequent one may be."""
_STRANGE = 0.1
"""The share of rows up to which another script is a stray one, not the data set's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to look at before training."""

    code: str
    message: str
    count: int
    rows: list[int]
    """The first of them, counted from one within their part."""
    part: Part = "train"
    blocking: bool = False
    """Whether nothing can be learnt as it is."""


def check(train: Path, validation: Path | None) -> list[Finding]:
    """Look through a data set's rows, blocking findings first."""
    learnt = _seen(train)
    found = [*_of_part(learnt, "train")]
    if validation is not None:
        held = _seen(validation)
        found += [*_of_part(held, "validation"), *_overlap(learnt, held)]
    elif learnt.rows == 1:
        found.append(
            Finding(
                code="too_few_rows",
                message="There is one row; training and validation need one each",
                count=1,
                rows=[1],
                blocking=True,
            )
        )
    return sorted(found, key=lambda one: (not one.blocking, one.part, -one.count))


@dataclass(slots=True)
class _Places:
    """How often something was found, and where first."""

    count: int = 0
    rows: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        self.count += 1
        if len(self.rows) < SHOWN:
            self.rows.append(number)


@dataclass(slots=True)
class _Seen:
    """What is kept of the rows of one part."""

    rows: int = 0
    whole: "array[int]" = field(default_factory=lambda: array("Q"))
    """A hash of each row."""
    questions: "array[int]" = field(default_factory=lambda: array("Q"))
    """A hash of what stands before the last answer; of a text, of all of it."""
    suspicions: dict[str, _Places] = field(default_factory=dict)
    scripts: dict[str, _Places] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    """As long as they are few."""
    labels: Counter[bool] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        self.whole.append(_hash(row))
        self.questions.append(_hash(row.get("text") or _asked(row)))
        for code, (_message, holds) in SUSPICIONS.items():
            if holds(row):
                self.suspicions.setdefault(code, _Places()).add(self.rows)
        self.scripts.setdefault(script(row), _Places()).add(self.rows)
        if len(self.answers) <= _FEW and "text" not in row:
            self.answers[answer(row)[:100]] += 1
        if "label" in row:
            self.labels[row["label"]] += 1


def _seen(path: Path) -> _Seen:
    seen = _Seen()
    with path.open("rb") as lines:
        for line in lines:
            seen.add(json.loads(line))
    return seen


def _asked(row: Mapping[str, Any]) -> list[Any]:
    turns: list[Any] = row["messages"]
    return turns if "chosen" in row else turns[:-1]


def _hash(value: object) -> int:
    written = json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
    return int.from_bytes(blake2b(written, digest_size=8).digest())


def _of_part(seen: _Seen, part: Part) -> Iterator[Finding]:
    for code, places in seen.suspicions.items():
        yield Finding(
            code=code, message=SUSPICIONS[code][0], count=places.count, rows=places.rows, part=part
        )
    yield from _repeated(seen, part)
    yield from _strays(seen, part)
    yield from _classes(seen, part)
    yield from _labels(seen, part)


def _repeated(seen: _Seen, part: Part) -> Iterator[Finding]:
    count, rows = _again(seen.whole)
    if count:
        message = "Rows stand here more than once"
        yield Finding(code="duplicates", message=message, count=count, rows=rows, part=part)
    asked, places = _again(seen.questions)
    if asked > count:
        message = "Questions are asked again and answered otherwise"
        yield Finding(
            code="same_question", message=message, count=asked - count, rows=places, part=part
        )


def _again(hashes: "array[int]") -> tuple[int, list[int]]:
    """Return how many rows stood before already, and the first of them."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    values = pa.array(hashes, pa.uint64())
    counts = compute.value_counts(values)
    repeated = counts.filter(compute.greater(counts.field("counts"), 1)).field("values")
    surplus = len(hashes) - len(counts)
    known: set[int] = set()
    rows: list[int] = []
    for place in compute.indices_nonzero(compute.is_in(values, value_set=repeated)):
        index = place.as_py()
        if hashes[index] in known:
            rows.append(index + 1)
        known.add(hashes[index])
        if len(rows) == SHOWN:
            break
    return surplus, rows


def _overlap(learnt: _Seen, held: _Seen) -> Iterator[Finding]:
    """Find rows that measure progress by what was learnt by heart."""
    import pyarrow as pa  # noqa: PLC0415 -- heavy import
    from pyarrow import compute  # noqa: PLC0415 -- heavy import

    known = pa.array(learnt.questions, pa.uint64())
    both = compute.is_in(pa.array(held.questions, pa.uint64()), value_set=known)
    places = compute.indices_nonzero(both)
    if len(places):
        yield Finding(
            code="overlap",
            message="Rows that measure progress ask what the training rows ask, too; the "
            "validation loss will look better than it is",
            count=len(places),
            rows=[place.as_py() + 1 for place in places[:SHOWN]],
            part="validation",
        )


def _strays(seen: _Seen, part: Part) -> Iterator[Finding]:
    written = {name: places for name, places in seen.scripts.items() if name}
    if not written:
        return
    main = max(written, key=lambda name: written[name].count)
    for name, places in written.items():
        if name != main and places.count <= _STRANGE * seen.rows:
            message = f"Rows are written mostly in {_script(name)}, the others in {_script(main)}"
            yield Finding(
                code="other_script",
                message=message,
                count=places.count,
                rows=places.rows,
                part=part,
            )


def _script(name: str) -> str:
    return {"CJK": "Chinese or Japanese"}.get(name, name.capitalize())


def _classes(seen: _Seen, part: Part) -> Iterator[Finding]:
    """Say so where few different answers are far from equally frequent."""
    kinds = seen.answers
    if seen.rows < _ENOUGH or not kinds or len(kinds) > min(_FEW, seen.rows / 4):
        return
    ordered = kinds.most_common()
    (most, many), (least, few) = ordered[0], ordered[-1]
    if len(kinds) == 1:
        message = f"All answers are the same: {most}"
        yield Finding(code="one_answer", message=message, count=many, rows=[], part=part)
    elif many > _UNEVEN * few:
        message = (
            f"The answers are {len(kinds)} classes and uneven: {most} stands {many:,} times, "
            f"{least} {few:,} times. A model may learn to say the frequent one"
        )
        yield Finding(code="uneven_classes", message=message, count=few, rows=[], part=part)


def _labels(seen: _Seen, part: Part) -> Iterator[Finding]:
    if seen.labels and not seen.labels[True]:
        yield Finding(
            code="no_good_answers",
            message="No row is labelled good, so supervised training has nothing to learn",
            count=seen.rows,
            rows=[],
            part=part,
            blocking=True,
        )
