"""Checks of a whole dataset: findings with counts, row numbers and messages.

Rows are streamed. Only two hashes of eight bytes are kept of each, so a file of millions of rows
needs megabytes. `locate_finding` shows where in a row a finding is, and why.

The findings of a dataset version are stored beside its rows, with all row numbers: a page lists the
first rows of a finding, but excluding them needs all.
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from studio.intake.files.limits import ProgressCallback
from studio.intake.quality import answer_facts, finding_rows
from studio.intake.quality.answer_facts import AnswerCounter, AnswerFacts
from studio.intake.quality.findings import MAX_LISTED_ROWS, Finding
from studio.intake.quality.language_check import RowSample, find_other_languages
from studio.intake.quality.row_checks import (
    LONG_BYTES,
    OVER_LONG_MESSAGE,
    ROW_CHECKS,
    TEXT_CHECKS,
    answer_chars,
    ascii_script,
    is_over_long,
    last_answer,
    main_script,
    row_texts,
    script_name,
)
from studio.intake.quality.task_checks import OVERLAP_MESSAGE, REPEATED_MESSAGE, ColumnCounter
from studio.intake.rows.deduplication import find_common, find_repeats, question_key
from studio.intake.rows.pipeline import ROW_FILES, Part

if TYPE_CHECKING:
    from studio.intake.row_formats.schema import CanonicalRow

_MESSAGES = {"over_long": OVER_LONG_MESSAGE} | {
    code: message for code, (message, _how) in [*TEXT_CHECKS.items(), *ROW_CHECKS.items()]
}
_DECODER = json.JSONDecoder()
_PROGRESS_INTERVAL = 1000
"""Rows between two progress reports."""
_MAX_CLASSES = 50
"""With at most this many distinct answers, they count as classes."""
_MIN_ROWS = 20
"""Minimum number of rows for shares to be meaningful."""
_MAX_QUOTED = 5
"""Labels named in a message."""
_MAX_CLASS_RATIO = 20
"""Maximum ratio of the most frequent to the rarest class."""
_MAX_RATING_RATIO = 10
"""Maximum ratio of good to bad answers, or of bad to good ones."""
_LONGER_SHARE = 0.8
"""From this share on, the better answers of pairs are nearly always longer."""
_STRAY_SCRIPT_SHARE = 0.1
"""Up to this share of the rows, another script counts as stray and not as the dataset's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """What the checks of a dataset found out."""

    findings: list[Finding]
    """Blocking ones first."""
    answers: AnswerFacts
    """Of the training part."""


def check_dataset(
    train: Path,
    validation: Path | None,
    on_progress: ProgressCallback = lambda _share: None,
    *,
    languages: bool = True,
) -> DatasetReport:
    """Check a dataset's rows.

    Detecting `languages` loads a model of 75 MB, which stays loaded.
    """
    findings, parts, answers = _check_parts(train, validation, on_progress)
    # The rows' hashes are freed by now: the model takes as much memory.
    for path, part, sample, script in parts if languages else ():
        message, count, rows = find_other_languages(path, sample, script, MAX_LISTED_ROWS)
        if count:
            code = "other_language"
            findings.append(Finding(code=code, message=message, count=count, rows=rows, part=part))
    findings.sort(key=lambda one: (not one.blocking, one.part, -one.count))
    return DatasetReport(findings=findings, answers=answers)


def _check_parts(
    train: Path, validation: Path | None, on_progress: ProgressCallback
) -> tuple[list[Finding], list[tuple[Path, Part, RowSample, str]], AnswerFacts]:
    """Return the findings, each part's sample of rows and main script, and the answers' facts."""
    total_bytes = train.stat().st_size + (validation.stat().st_size if validation else 0)
    train_scan = _scan_part(train, lambda done: on_progress(done / total_bytes))
    answers = train_scan.answer_facts.facts()
    findings = [
        *_part_findings(train_scan, "train"),
        *_rare_label_findings(answers),
        *_number_findings(train_scan.answer_facts),
    ]
    parts: list[tuple[Path, Part, RowSample, str]]
    parts = [(train, "train", train_scan.sample, _main_script(train_scan))]
    if validation is not None:
        train_bytes = train.stat().st_size
        validation_scan = _scan_part(
            validation, lambda done: on_progress((train_bytes + done) / total_bytes)
        )
        findings += [
            *_part_findings(validation_scan, "validation"),
            *_overlap_findings(train_scan, validation_scan),
            *_class_part_findings(train_scan, validation_scan),
        ]
        parts.append(
            (validation, "validation", validation_scan.sample, _main_script(validation_scan))
        )
    elif train_scan.usable == 1:
        message = "Only one row can be trained on; training and validation need one each"
        rows = [1] if train_scan.rows == 1 else []
        findings.append(
            Finding(code="too_few_rows", message=message, count=1, rows=rows, blocking=True)
        )
    return findings, parts, answers


@dataclass(slots=True)
class _RowNumbers:
    """How often something occurs, and the first rows where it does."""

    count: int = 0
    rows: list[int] = field(default_factory=list)

    def note(self, number: int) -> None:
        self.count += 1
        if len(self.rows) < MAX_LISTED_ROWS:
            self.rows.append(number)


@dataclass(slots=True)
class _PartScan:
    """What is collected from the rows of one part."""

    rows: int = 0
    row_hashes: "array[int]" = field(default_factory=lambda: array("q"))
    """A hash of each row, valid in this process only."""
    question_hashes: "array[int]" = field(default_factory=lambda: array("q"))
    """A hash of the question; of a text, of the whole text."""
    suspicions: dict[str, _RowNumbers] = field(default_factory=dict)
    scripts: dict[str, _RowNumbers] = field(default_factory=dict)
    sample: RowSample = field(default_factory=RowSample)
    answers: dict[str, _RowNumbers] = field(default_factory=dict)
    """Collected only while there are few."""
    answer_facts: AnswerCounter = field(default_factory=AnswerCounter)
    columns: ColumnCounter = field(default_factory=ColumnCounter)
    """The columns of tasks, which graders read."""
    labels: Counter[bool] = field(default_factory=Counter)
    labels_listed: dict[str, _RowNumbers] = field(default_factory=dict)
    """By label, of rows that may have several. Collected only while there are few."""
    better_hashes: "array[int]" = field(default_factory=lambda: array("q"))
    """A hash of the prompt with the better answer, of pairs."""
    worse_hashes: "array[int]" = field(default_factory=lambda: array("q"))
    pairs: int = 0
    longer: _RowNumbers = field(default_factory=_RowNumbers)
    """Pairs whose better answer is longer than the worse."""

    @property
    def usable(self) -> int:
        """The number of rows SFT trains on: those not rated bad."""
        return self.labels[True] if self.labels else self.rows

    @property
    def classes(self) -> dict[str, _RowNumbers]:
        """The rows of each label; empty if the answers are no labels."""
        if self.labels_listed:
            return self.labels_listed if len(self.labels_listed) <= _MAX_CLASSES else {}
        is_class = not self.pairs and not self.labels
        few = len(self.answers) <= min(_MAX_CLASSES, self.rows / 4)
        return self.answers if is_class and few and self.rows >= _MIN_ROWS else {}

    def add(self, line: bytes) -> None:
        row: dict[str, Any] = _DECODER.raw_decode(line.decode())[0]
        self.rows += 1
        line_hash = hash(line)
        self.row_hashes.append(line_hash)
        self.question_hashes.append(
            line_hash if "text" in row else self._question_hash(row) or line_hash
        )
        for code, (_message, holds) in ROW_CHECKS.items():
            if holds(row):
                self._note(code)
        if len(line) > LONG_BYTES and is_over_long(row):
            self._note("over_long")
        self.scripts.setdefault(self._scan_script(row, line), _RowNumbers()).note(self.rows)
        self.sample.add(line, row)
        self.columns.add(row)
        if len(self.answers) <= _MAX_CLASSES and (answer := last_answer(row)):
            self.answers.setdefault(answer[:100], _RowNumbers()).note(self.rows)
        self.answer_facts.add(row)
        if "label" in row:
            self.labels[row["label"]] += 1
        for label in row.get("labels", ()) if len(self.labels_listed) <= _MAX_CLASSES else ():
            self.labels_listed.setdefault(label, _RowNumbers()).note(self.rows)
        if "rejected" in row:
            self._add_pair(row)

    def _add_pair(self, row: Mapping[str, Any]) -> None:
        self.pairs += 1
        self.better_hashes.append(_hash_answered(row, "chosen"))
        self.worse_hashes.append(_hash_answered(row, "rejected"))
        if answer_chars(row, "chosen") > answer_chars(row, "rejected"):
            self.longer.note(self.rows)

    @staticmethod
    def _question_hash(row: Mapping[str, Any]) -> int:
        question = question_key(cast("CanonicalRow", row))
        return hash(question) if question else 0

    def _scan_script(self, row: Mapping[str, Any], line: bytes) -> str:
        """Run the text checks on a row and return its script.

        ASCII rows, which most are, can skip the checks.
        """
        if line.isascii() and b"\\u" not in line and b"\x7f" not in line:
            return ascii_script(row)
        text = "\n".join(row_texts(row))
        for code, (_message, pattern) in TEXT_CHECKS.items():
            if pattern.search(text):
                self._note(code)
        return main_script(row)

    def _note(self, code: str) -> None:
        self.suspicions.setdefault(code, _RowNumbers()).note(self.rows)


def _hash_answered(row: Mapping[str, Any], answer: str) -> int:
    return hash(json.dumps([row["messages"], row[answer]]))


def _scan_part(path: Path, on_progress: Callable[[int], None]) -> _PartScan:
    """Scan every row; `report` is called with the number of bytes scanned."""
    scan, done = _PartScan(), 0
    with path.open("rb") as lines:
        for line in lines:
            scan.add(line.rstrip(b"\n"))
            done += len(line)
            if scan.rows % _PROGRESS_INTERVAL == 0:
                on_progress(done)
    return scan


def _part_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    for code, places in scan.suspicions.items():
        yield Finding(
            code=code, message=_MESSAGES[code], count=places.count, rows=places.rows, part=part
        )
    yield from _duplicate_findings(scan, part)
    yield from _script_findings(scan, part)
    yield from _class_balance_findings(scan, part)
    yield from _label_findings(scan, part)
    yield from _pair_findings(scan, part)
    yield from scan.columns.findings(part)


def _duplicate_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    count, twins = find_repeats(scan.row_hashes, MAX_LISTED_ROWS)
    if count:
        message = "Duplicate rows"
        yield _repetition_finding("duplicates", message, count, twins, part)
    question_count, others = find_repeats(scan.question_hashes, MAX_LISTED_ROWS)
    # Several answers to one question are what ratings are for.
    if question_count > count and not scan.labels:
        message = "The same questions have different answers"
        if scan.columns.rows:
            message = REPEATED_MESSAGE
        others = {row: first for row, first in others.items() if row not in twins}
        yield _repetition_finding("same_question", message, question_count - count, others, part)


def _overlap_findings(train_scan: _PartScan, validation_scan: _PartScan) -> Iterator[Finding]:
    """Find validation rows whose questions are also trained on."""
    count, twins = find_common(
        validation_scan.question_hashes, train_scan.question_hashes, MAX_LISTED_ROWS
    )
    if count:
        message = (
            "Validation rows ask the same questions as training rows; the validation loss will "
            "look better than it is"
        )
        if validation_scan.columns.rows:
            message = OVERLAP_MESSAGE
        yield _repetition_finding("overlap", message, count, twins, "validation")


def _repetition_finding(
    code: str, message: str, count: int, twins: dict[int, int], part: Part
) -> Finding:
    rows, others = list(twins), list(twins.values())
    return Finding(code=code, message=message, count=count, rows=rows, part=part, twins=others)


def _script_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    main = _main_script(scan)
    scripts = {name: places for name, places in scan.scripts.items() if name}
    stray_limit = _STRAY_SCRIPT_SHARE * scan.rows
    strays = {
        name: numbers
        for name, numbers in scripts.items()
        if name != main and numbers.count <= stray_limit
    }
    if strays:
        names = ", ".join(map(script_name, strays))
        yield Finding(
            code="other_script",
            message=f"Some rows are mostly in {names}; the other rows are in {script_name(main)}",
            count=sum(numbers.count for numbers in strays.values()),
            rows=sorted(row for numbers in strays.values() for row in numbers.rows)[
                :MAX_LISTED_ROWS
            ],
            part=part,
        )


def _main_script(scan: _PartScan) -> str:
    counts = {name: places.count for name, places in scan.scripts.items() if name}
    return max(counts, key=counts.__getitem__, default="")


def _class_balance_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    """Report a few distinct answers with very different frequencies."""
    classes = scan.answers
    if scan.rows < _MIN_ROWS or not classes or len(classes) > min(_MAX_CLASSES, scan.rows / 4):
        return
    ordered = sorted(classes, key=lambda one: -classes[one].count)
    most, least = ordered[0], ordered[-1]
    frequent, rare = classes[most], classes[least]
    if len(classes) == 1:
        code, message = "one_answer", f"All answers are identical: {most}"
    elif frequent.count > _MAX_CLASS_RATIO * rare.count:
        code = "uneven_classes"
        message = (
            f"The {len(classes)} classes are imbalanced: “{most}” occurs {frequent.count:,} "
            f"times, “{least}” {_format_times(rare.count)}. The model may learn "
            "to always give the frequent answer"
        )
    else:
        return
    yield Finding(code=code, message=message, count=rare.count, rows=rare.rows, part=part)


def _format_times(count: int) -> str:
    return "1 time" if count == 1 else f"{count:,} times"


def _label_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    if scan.labels and not scan.labels[True]:
        yield Finding(
            code="no_good_answers",
            message="No answer is rated good, so no method can train on this data",
            count=scan.rows,
            rows=list(range(1, min(scan.rows, MAX_LISTED_ROWS) + 1)),
            part=part,
            blocking=True,
        )

    elif scan.rows >= _MIN_ROWS and scan.labels:
        yield from _one_sided_findings(scan, part)


def _one_sided_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    """Report that nearly all answers have the same rating."""
    good, bad = scan.labels[True], scan.labels[False]
    if max(good, bad) <= _MAX_RATING_RATIO * min(good, bad):
        return
    message = f"Only {bad:,} of {scan.rows:,} answers are rated bad"
    if good < bad:
        message = f"Only {good:,} of {scan.rows:,} answers are rated good"
    yield Finding(code="one_sided", message=message, count=min(good, bad), rows=[], part=part)


def _rare_label_findings(facts: AnswerFacts) -> Iterator[Finding]:
    """Report labels with too few training rows to be learned."""
    if facts.rows < _MIN_ROWS or not answer_facts.are_classes(facts):
        return
    rare = [label for label, rows in facts.labels.items() if rows < answer_facts.FEW_ROWS]
    if rare:
        count = sum(facts.labels[label] for label in rare)
        message = (
            f"Labels with fewer than {answer_facts.FEW_ROWS} training rows are hardly learned: "
            f"{answer_facts.shorten(rare)}"
        )
        yield Finding(code="rare_labels", message=message, count=count, rows=[])


def _number_findings(counter: AnswerCounter) -> Iterator[Finding]:
    """Report numbers that are far from all others."""
    for name, rows in counter.outliers().items():
        message = "Some answers are numbers far from all others, which may be mistakes"
        if name:
            message = f"Some values of {name} are far from all others, which may be mistakes"
        yield Finding(
            code="outlying_numbers", message=message, count=len(rows), rows=rows[:MAX_LISTED_ROWS]
        )
        # A finding is one per code.
        return


def _class_part_findings(train_scan: _PartScan, validation_scan: _PartScan) -> Iterator[Finding]:
    """Report labels that only one of the parts has."""
    trained = train_scan.classes
    measured = validation_scan.labels_listed or validation_scan.answers
    if not trained or len(measured) > _MAX_CLASSES:
        return
    if missing := sorted(trained.keys() - measured.keys()):
        names = _quote(missing)
        message = f"No validation row has the class {names}, so no metric shows if it is learned"
        yield _class_finding("unmeasured_classes", message, trained, missing)
    if unseen := sorted(measured.keys() - trained.keys()):
        names = _quote(unseen)
        message = f"No training row has the class {names}, so the model cannot learn it"
        yield _class_finding("unseen_classes", message, measured, unseen, "validation")


def _quote(classes: list[str]) -> str:
    more = ["…"] if len(classes) > _MAX_QUOTED else []
    return ", ".join([*(f"“{one}”" for one in classes[:_MAX_QUOTED]), *more])


def _class_finding(
    code: str,
    message: str,
    rows_by_class: Mapping[str, _RowNumbers],
    classes: list[str],
    part: Part = "train",
) -> Finding:
    rows = sorted({row for one in classes for row in rows_by_class[one].rows})[:MAX_LISTED_ROWS]
    return Finding(code=code, message=message, count=len(rows), rows=rows, part=part)


def _pair_findings(scan: _PartScan, part: Part) -> Iterator[Finding]:
    """Report pairs that contradict each other, and that the better answer is mostly longer."""
    count, twins = find_common(scan.better_hashes, scan.worse_hashes, MAX_LISTED_ROWS)
    if count:
        message = "The better answer of one row is the worse answer of another, after one prompt"
        yield _repetition_finding("contradiction", message, count, twins, part)
    if scan.pairs < _MIN_ROWS or scan.longer.count < _LONGER_SHARE * scan.pairs:
        return
    share = 100 * scan.longer.count // scan.pairs
    message = (
        f"In {share} % of the pairs, the better answer is the longer one; the model may learn to "
        "write more instead of better"
    )
    rows = scan.longer.rows
    yield Finding(
        code="longer_is_better", message=message, count=scan.longer.count, rows=rows, part=part
    )


SHOWN_ROWS = 20
"""Rows of a finding that are reported; the file has up to `MAX_LISTED_ROWS`."""


def check_and_store(
    folder: Path, on_progress: ProgressCallback = lambda _share: None, *, languages: bool = True
) -> DatasetReport:
    """Check the rows in a folder, store the findings there, and return them shortened.

    See `check_dataset` for `languages`.
    """
    validation = folder / ROW_FILES["validation"]
    validation_file = validation if validation.exists() else None
    report = check_dataset(
        folder / ROW_FILES["train"], validation_file, on_progress, languages=languages
    )
    finding_rows.store(
        folder, {(one.code, one.part): [one.rows, one.twins] for one in report.findings}
    )
    on_progress(1)
    findings = [
        replace(finding, rows=finding.rows[:SHOWN_ROWS], twins=[]) for finding in report.findings
    ]
    return replace(report, findings=findings)
