"""Tables of sample answers: of several runs to each prompt, or of one run across its steps."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase

from studio.db.tables import Run, Sample
from studio.evaluation import answer_rules
from studio.services.samples import sample_diff, sample_ratings
from studio.services.samples.sample_diff import AnswerScore, DiffPiece

EXCERPT_CHARS = 320
"""Characters of an answer that are shown before it is expanded."""

MAX_CELLS, MIN_ROWS = 240, 5
"""Initial size of a table: the more runs, the fewer prompts."""

Prompt = tuple[str, str]
"""A prompt and its expected answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One answer, marked where it differs from the one it is compared with."""

    run_id: int = 0
    sample_id: int = 0
    """0 if there is no answer."""
    excerpt: list[DiffPiece] = field(default_factory=list)
    remainder: list[DiffPiece] = field(default_factory=list)
    """The rest of a long answer."""
    is_right: bool | None = None
    """Whether it is the expected answer; None if none is expected, or the page is blind."""
    is_same: bool = False
    is_rewritten: bool = False
    can_be_rated: bool = False
    score: int | None = None
    when: str = ""
    """The step of an answer that is not the run's final one."""
    computed_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    prompt: str
    expected: str
    cells: list[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    headings: list[str]
    rows: list[Row]
    matching: int
    """How many prompts pass the filter; fewer may be shown."""
    total: int
    tallies: list[AnswerScore]
    """Score of each column, over all prompts with an expected answer; empty on a blind page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Which prompts to show, and whether to show the runs' names."""

    differs: bool = False
    find: str = ""
    all_prompts: bool = False
    """Whether to show all prompts, however many there are."""
    blind: int | None = None
    """Seed to shuffle by; None shows the runs' names and marks differences."""


def table_across_runs(
    runs: Sequence[Run],
    samples: Sequence[Sample],
    scores: Mapping[int, int],
    sample_filter: SampleFilter,
) -> Table:
    """Return the last answer of each run to each prompt; the first run is the baseline."""
    last: dict[Prompt, dict[int, Sample]] = {}
    for sample in samples:
        last.setdefault((sample.prompt, sample.reference), {})[sample.run_id] = sample
    matches = [
        (prompt, answers)
        for prompt, answers in last.items()
        if _matches(prompt, answers, sample_filter)
    ]
    max_rows = len(matches) if sample_filter.all_prompts else max(MIN_ROWS, MAX_CELLS // len(runs))
    rows = [_run_row(prompt, runs, answers, scores) for prompt, answers in matches[:max_rows]]
    heads = [run.name for run in runs]
    tallies = [
        _count_correct(answers.get(run.id or 0) for answers in last.values()) for run in runs
    ]
    if sample_filter.blind is not None:
        heads = [f"Answer {_column_letter(index)}" for index in range(len(runs))]
        rows = [_shuffled(row, sample_filter.blind) for row in rows]
        tallies = []
    return Table(headings=heads, rows=rows, matching=len(matches), total=len(last), tallies=tallies)


def table_across_steps(samples: Sequence[Sample], scores: Mapping[int, int]) -> Table:
    """Return one run's answers to each prompt across its steps, each compared to the one before."""
    stage_steps = list(
        dict.fromkeys((sample.stage, sample.step) for sample in sorted(samples, key=_sample_order))
    )
    answers_by_position: dict[int, dict[tuple[str, int], Sample]] = {}
    for sample in samples:
        answers_by_position.setdefault(sample.position, {})[sample.stage, sample.step] = sample
    rows = [_step_row(stage_steps, answers, scores) for answers in answers_by_position.values()]
    heads = [_step_label(*stage_step) for stage_step in stage_steps]
    tallies = [
        _count_correct(answers.get(stage_step) for answers in answers_by_position.values())
        for stage_step in stage_steps
    ]
    return Table(headings=heads, rows=rows, matching=len(rows), total=len(rows), tallies=tallies)


def _count_correct(samples: Iterable[Sample | None]) -> AnswerScore:
    return sample_diff.count_correct(
        answer_rules.is_correct(sample.answer, sample.reference) for sample in samples if sample
    )


def _run_row(
    prompt: Prompt, runs: Sequence[Run], answers: Mapping[int, Sample], scores: Mapping[int, int]
) -> Row:
    base = answers.get(runs[0].id or 0)
    cells = [_cell(answers.get(run.id or 0), base, scores, run.id or 0) for run in runs]
    return Row(prompt=prompt[0], expected=prompt[1], cells=cells)


def _step_row(
    stage_steps: Sequence[tuple[str, int]],
    answers: Mapping[tuple[str, int], Sample],
    scores: Mapping[int, int],
) -> Row:
    cells: list[Cell] = []
    previous: Sample | None = None
    for stage_step in stage_steps:
        cells.append(_cell(answers.get(stage_step), previous, scores))
        previous = answers.get(stage_step, previous)
    first = next(iter(answers.values()))
    return Row(prompt=first.prompt, expected=first.reference, cells=cells)


def _cell(
    sample: Sample | None, against: Sample | None, scores: Mapping[int, int], run_id: int = 0
) -> Cell:
    """Mark an answer where it differs from `against`, which itself has no marks."""
    if sample is None:
        return Cell(run_id=run_id)
    unmarked = [DiffPiece("same", sample.answer)] if sample.answer else []
    has_other = against is not None and against is not sample
    pieces = (
        sample_diff.diff_words(sample.answer, against.answer) if against and has_other else unmarked
    )
    is_rewritten = has_other and sample_diff.is_rewritten(pieces)
    excerpt, rest = sample_diff.split_pieces(unmarked if is_rewritten else pieces, EXCERPT_CHARS)
    is_final = sample.stage == sample_ratings.FINAL_STAGE
    return Cell(
        run_id=sample.run_id,
        sample_id=sample.id or 0,
        excerpt=excerpt,
        remainder=rest,
        is_right=answer_rules.is_correct(sample.answer, sample.reference),
        is_same=has_other and all(piece.kind == "same" for piece in pieces),
        is_rewritten=is_rewritten,
        can_be_rated=is_final,
        score=scores.get(sample.id or 0),
        when="" if is_final else _step_label(sample.stage, sample.step),
        computed_in=sample.computed_in,
    )


def _matches(prompt: Prompt, answers: Mapping[int, Sample], criteria: SampleFilter) -> bool:
    text = "\n".join([*prompt, *(sample.answer for sample in answers.values())])
    words = criteria.find.casefold().split()
    differs = len({tuple(sample.answer.split()) for sample in answers.values()}) > 1
    return all(word in text.casefold() for word in words) and (differs or not criteria.differs)


def _shuffled(row: Row, seed: int) -> Row:
    """Shuffle a row's answers, without marks that would reveal the baseline."""
    cells = [_without_marks(cell) for cell in row.cells]
    random.Random(f"{seed} {row.prompt}").shuffle(cells)  # noqa: S311 -- an order, not a secret
    return Row(prompt=row.prompt, expected=row.expected, cells=cells)


def _without_marks(cell: Cell) -> Cell:
    text = "".join(piece.text for piece in (*cell.excerpt, *cell.remainder) if piece.kind != "gone")
    excerpt, rest = sample_diff.split_pieces(
        [DiffPiece("same", text)] if text else [], EXCERPT_CHARS
    )
    return Cell(
        run_id=cell.run_id,
        sample_id=cell.sample_id,
        excerpt=excerpt,
        remainder=rest,
        can_be_rated=cell.can_be_rated,
        score=cell.score,
    )


def _column_letter(position: int) -> str:
    """Return the letters of a column: A to Z, then AA and so on."""
    quotient, remainder = divmod(position, len(ascii_uppercase))
    return ascii_uppercase[quotient - 1 : quotient] * bool(quotient) + ascii_uppercase[remainder]


def _sample_order(sample: Sample) -> tuple[int, bool, bool]:
    return sample.step, sample.stage == sample_ratings.FINAL_STAGE, sample.stage != "before"


def _step_label(stage: str, step: int) -> str:
    if stage == "before":
        return "Before training"
    return "After training" if stage == sample_ratings.FINAL_STAGE else f"Step {step}"
