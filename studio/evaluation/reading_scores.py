"""Scores of what models say of a text that they read: labels, numbers, steps, entities.

Each function takes a row and returns what it contributes, or sums of that and returns a score.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from studio.evaluation.evaluation_metric import RowStatistics
from studio.evaluation.rows import AnsweredRow
from studio.evaluation.text_scores import Statistics, share

BINS = 15
"""Ranges of confidence that the calibration error compares, as in training."""

RIGHT, WRONG = "right", "wrong"
"""The verdicts on steps."""

_NAME_END = ": "


def same_lines(row: AnsweredRow) -> Statistics:
    """Count an answer with the same lines as the reference, in any order."""
    return share(_is_right(row))


def _is_right(row: AnsweredRow) -> bool:
    if row.kind == "score":
        return row.answer == row.reference
    return Counter(row.lines) == Counter(row.reference_lines)


def same_steps(row: AnsweredRow) -> Statistics | None:
    """Count the steps with the right verdict, of those that the model has read."""
    pairs = list(zip(row.lines, row.reference_lines, strict=False))
    return (float(sum(one == other for one, other in pairs)), float(len(pairs))) if pairs else None


def first_error(row: AnsweredRow) -> Statistics:
    """Count a solution whose first wrong step was found, or that has none and got none.

    What ProcessBench measures: arXiv:2412.06559, section 3.1.
    """
    given, true = _wrong_steps(row.lines), _wrong_steps(row.reference_lines)
    return share(given[:1] == true[:1])


def wrong_steps(row: AnsweredRow) -> Statistics:
    """Count the wrong steps that were found, all that were called wrong, and all that are."""
    given, true = set(_wrong_steps(row.lines)), set(_wrong_steps(row.reference_lines))
    return (float(len(given & true)), float(len(given)), float(len(true)))


def wrong_step_f1(sums: Sequence[float]) -> float:
    """Return the F1 score of wrong steps; 1 if none is wrong and none was called wrong."""
    return f1(sums) if sums[1] + sums[2] else 1.0


def _wrong_steps(lines: Sequence[str]) -> list[str]:
    """Return the lines with the verdict that a step is wrong, in their order."""
    return [line for line in lines if line.endswith(WRONG)]


def found_lines(row: AnsweredRow) -> Statistics:
    """Count the lines that are right, those of the answer and those of the reference."""
    given, true = set(row.lines), set(row.reference_lines)
    return (float(len(given & true)), float(len(given)), float(len(true)))


def f1(sums: Sequence[float]) -> float:
    """Return the F1 score of all lines together; 0 if there are none, as in training."""
    right, given, true = sums
    return 2 * right / max(given + true, 1)


def precision(sums: Sequence[float]) -> float:
    """Return the share of the answers' lines that are right; 0 if there are none."""
    return sums[0] / max(sums[1], 1)


def recall(sums: Sequence[float]) -> float:
    """Return the share of the references' lines that were found; 0 if there are none."""
    return sums[0] / max(sums[2], 1)


def count_each_line(rows: Sequence[AnsweredRow]) -> RowStatistics:
    """Return what counts how often each label is right, given and true."""
    labels = sorted(list_labels(rows))

    def count(row: AnsweredRow) -> Statistics:
        given, true = set(row.lines), set(row.reference_lines)
        counted = ((one in given & true, one in given, one in true) for one in labels)
        return tuple(float(each) for three in counted for each in three)

    return count


def list_labels(rows: Iterable[AnsweredRow]) -> set[str]:
    """Return the labels that rows have or are given."""
    return {line for row in rows for line in (*row.lines, *row.reference_lines)}


def macro_f1(sums: Sequence[float]) -> float:
    """Return the mean F1 score of the labels that occur or are given; NaN without any."""
    scores = [
        f1((right, given, true))
        for right, given, true in zip(sums[::3], sums[1::3], sums[2::3], strict=True)
        if given + true
    ]
    return fmean(scores) if scores else math.nan


def log_loss(row: AnsweredRow) -> Statistics | None:
    """Return the loss of the right answer in nats."""
    is_counted = row.nll is not None and row.nll_tokens == 1 and math.isfinite(row.nll)
    return (row.nll or 0.0, 1.0) if is_counted else None


def confidence(row: AnsweredRow) -> Statistics | None:
    """Return how sure the model is, and whether it is right, in the place of its range."""
    if row.confidence is None:
        return None
    counted = [0.0] * (2 * BINS)
    place = min(int(row.confidence * BINS), BINS - 1)
    counted[2 * place] = row.confidence
    counted[2 * place + 1] = float(_is_right(row))
    return (*counted, 1.0)


def calibration_error(sums: Sequence[float]) -> float:
    """Return the mean difference between confidence and share of right answers.

    Σ |Σ confidence - right answers| / n over the ranges: Guo et al., On Calibration of Modern
    Neural Networks (2017), equation 5.
    """
    gaps = (abs(one - right) for one, right in zip(sums[:-1:2], sums[1:-1:2], strict=True))
    return math.fsum(gaps) / sums[-1]


def read_numbers(lines: Sequence[str]) -> dict[str, float]:
    """Return the numbers of an answer by name; without a name, a number is the only one."""
    found: dict[str, float] = {}
    for line in lines:
        name, _, digits = line.rpartition(_NAME_END)
        try:
            value = float(digits)
        except ValueError:
            return {}
        if math.isfinite(value):
            found[name] = value
    return found


def write_numbers(numbers: Mapping[str, str]) -> str:
    """Return numbers as the lines of an answer; a single one stands alone."""
    if len(numbers) == 1:
        return next(iter(numbers.values()))
    return "\n".join(f"{name}{_NAME_END}{digits}" for name, digits in numbers.items())


def squared_errors(rows: Sequence[AnsweredRow]) -> RowStatistics:
    """Return what sums up errors and scatter of each number: n, Σ y, Σ y², Σ (given - y)².

    y is the distance from the mean, so that sums of large numbers lose no digits.
    """
    means = {name: fmean(values) for name, values in _collect_numbers(rows).items()}

    def count(row: AnsweredRow) -> Statistics | None:
        pairs = _pair_numbers(row, means)
        counted = (_scatter(given, true, means[name]) for name, (given, true) in pairs.items())
        return tuple(each for four in counted for each in four) or None

    return count


def scaled_errors(rows: Sequence[AnsweredRow]) -> RowStatistics:
    """Return what counts the squared error of a row, in deviations of each number that varies."""
    deviations = {name: pstdev(values) for name, values in _collect_numbers(rows).items()}

    def count(row: AnsweredRow) -> Statistics | None:
        pairs = _pair_numbers(row, deviations)
        squares = [
            ((given - true) / deviations[name]) ** 2
            for name, (given, true) in pairs.items()
            if deviations[name]
        ]
        return (fmean(squares), 1.0) if squares else None

    return count


def _collect_numbers(rows: Sequence[AnsweredRow]) -> dict[str, list[float]]:
    """Return the numbers of the references by name, in alphabetical order."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in read_numbers(row.reference_lines).items():
            found.setdefault(name, []).append(value)
    return dict(sorted(found.items()))


def _pair_numbers(row: AnsweredRow, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return each number as it was given and as it is; nothing if one is missing."""
    given, true = read_numbers(row.lines), read_numbers(row.reference_lines)
    wanted = list(names)
    if not all(name in given and name in true for name in wanted):
        return {}
    return {name: (given[name], true[name]) for name in wanted}


def _scatter(given: float, true: float, middle: float) -> tuple[float, float, float, float]:
    distance, error = true - middle, given - true
    return (1.0, distance, distance * distance, error * error)


def r2(sums: Sequence[float]) -> float:
    """Return the mean R² of the numbers: 1 - Σ (given - y)² / Σ (y - mean)².

    Where y does not vary it is 1 if all were met, else 0.
    """
    each = zip(*(sums[start::4] for start in range(4)), strict=True)
    return fmean(_r2(*four) for four in each)


def _r2(n: float, distance: float, square: float, error: float) -> float:
    scatter = square - distance * distance / n
    if scatter <= 0:
        return float(not error)
    return 1 - error / scatter


def error(row: AnsweredRow) -> float | None:
    """Return by how much a single number is missed; None if there is none, or several."""
    given, true = read_numbers(row.lines), read_numbers(row.reference_lines)
    if len(given) != 1 or len(true) != 1:
        return None
    return abs(next(iter(given.values())) - next(iter(true.values())))


def absolute_error(row: AnsweredRow) -> Statistics | None:
    """Return by how much a single number is missed."""
    missed = error(row)
    return None if missed is None else (missed, 1.0)


def squared_error(row: AnsweredRow) -> Statistics | None:
    """Return the square of the error of a single number."""
    missed = error(row)
    return None if missed is None else (missed * missed, 1.0)


def root_mean(sums: Sequence[float]) -> float:
    """Return the root of the mean."""
    return math.sqrt(sums[0] / sums[1])
