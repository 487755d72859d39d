"""Tables of sample answers: of several runs to each prompt, or of one run across its steps."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase

from studio.db.tables import Run, Sample
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
    shown: list[DiffPiece] = field(default_factory=list)
    rest: list[DiffPiece] = field(default_factory=list)
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
    wanted: str
    cells: list[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    heads: list[str]
    rows: list[Row]
    found: int
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
    runs: Sequence[Run], samples: Sequence[Sample], scores: Mapping[int, int], wanted: SampleFilter
) -> Table:
    """Return the last answer of each run to each prompt; the first run is the baseline."""
    last: dict[Prompt, dict[int, Sample]] = {}
    for one in samples:
        last.setdefault((one.prompt, one.reference), {})[one.run_id] = one
    found = [(prompt, said) for prompt, said in last.items() if _matches(prompt, said, wanted)]
    most = len(found) if wanted.all_prompts else max(MIN_ROWS, MAX_CELLS // len(runs))
    rows = [_run_row(prompt, runs, said, scores) for prompt, said in found[:most]]
    heads = [run.name for run in runs]
    tallies = [_count_correct(said.get(run.id or 0) for said in last.values()) for run in runs]
    if wanted.blind is not None:
        heads = [f"Answer {_column_letter(place)}" for place in range(len(runs))]
        rows = [_shuffled(row, wanted.blind) for row in rows]
        tallies = []
    return Table(heads=heads, rows=rows, found=len(found), total=len(last), tallies=tallies)


def table_across_steps(samples: Sequence[Sample], scores: Mapping[int, int]) -> Table:
    """Return one run's answers to each prompt across its steps, each compared to the one before."""
    moments = list(
        dict.fromkeys((one.stage, one.step) for one in sorted(samples, key=_sample_order))
    )
    said: dict[int, dict[tuple[str, int], Sample]] = {}
    for one in samples:
        said.setdefault(one.position, {})[one.stage, one.step] = one
    rows = [_step_row(moments, found, scores) for found in said.values()]
    heads = [_step_label(*moment) for moment in moments]
    tallies = [_count_correct(found.get(moment) for found in said.values()) for moment in moments]
    return Table(heads=heads, rows=rows, found=len(rows), total=len(rows), tallies=tallies)


def _count_correct(samples: Iterable[Sample | None]) -> AnswerScore:
    return sample_diff.count_correct(
        sample_diff.is_correct(one.answer, one.reference) for one in samples if one
    )


def _run_row(
    prompt: Prompt, runs: Sequence[Run], said: Mapping[int, Sample], scores: Mapping[int, int]
) -> Row:
    base = said.get(runs[0].id or 0)
    cells = [_cell(said.get(run.id or 0), base, scores, run.id or 0) for run in runs]
    return Row(prompt=prompt[0], wanted=prompt[1], cells=cells)


def _step_row(
    moments: Sequence[tuple[str, int]],
    found: Mapping[tuple[str, int], Sample],
    scores: Mapping[int, int],
) -> Row:
    cells: list[Cell] = []
    before: Sample | None = None
    for moment in moments:
        cells.append(_cell(found.get(moment), before, scores))
        before = found.get(moment, before)
    first = next(iter(found.values()))
    return Row(prompt=first.prompt, wanted=first.reference, cells=cells)


def _cell(
    sample: Sample | None, against: Sample | None, scores: Mapping[int, int], run_id: int = 0
) -> Cell:
    """Mark an answer where it differs from `against`, which itself has no marks."""
    if sample is None:
        return Cell(run_id=run_id)
    plain = [DiffPiece("same", sample.answer)] if sample.answer else []
    has_other = against is not None and against is not sample
    pieces = (
        sample_diff.diff_words(sample.answer, against.answer) if against and has_other else plain
    )
    is_rewritten = has_other and sample_diff.is_rewritten(pieces)
    shown, rest = sample_diff.split_pieces(plain if is_rewritten else pieces, EXCERPT_CHARS)
    is_final = sample.stage == sample_ratings.FINAL_STAGE
    return Cell(
        run_id=sample.run_id,
        sample_id=sample.id or 0,
        shown=shown,
        rest=rest,
        is_right=sample_diff.is_correct(sample.answer, sample.reference),
        is_same=has_other and all(piece.kind == "same" for piece in pieces),
        is_rewritten=is_rewritten,
        can_be_rated=is_final,
        score=scores.get(sample.id or 0),
        when="" if is_final else _step_label(sample.stage, sample.step),
        computed_in=sample.computed_in,
    )


def _matches(prompt: Prompt, said: Mapping[int, Sample], wanted: SampleFilter) -> bool:
    text = "\n".join([*prompt, *(one.answer for one in said.values())])
    words = wanted.find.casefold().split()
    differs = len({tuple(one.answer.split()) for one in said.values()}) > 1
    return all(word in text.casefold() for word in words) and (differs or not wanted.differs)


def _shuffled(row: Row, seed: int) -> Row:
    """Shuffle a row's answers, without marks that would reveal the baseline."""
    cells = [_without_marks(cell) for cell in row.cells]
    random.Random(f"{seed} {row.prompt}").shuffle(cells)  # noqa: S311 -- an order, not a secret
    return Row(prompt=row.prompt, wanted=row.wanted, cells=cells)


def _without_marks(cell: Cell) -> Cell:
    text = "".join(piece.text for piece in (*cell.shown, *cell.rest) if piece.kind != "gone")
    shown, rest = sample_diff.split_pieces([DiffPiece("same", text)] if text else [], EXCERPT_CHARS)
    return Cell(
        run_id=cell.run_id,
        sample_id=cell.sample_id,
        shown=shown,
        rest=rest,
        can_be_rated=cell.can_be_rated,
        score=cell.score,
    )


def _column_letter(place: int) -> str:
    """Return the letters of a column: A to Z, then AA and so on."""
    many, one = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[many - 1 : many] * bool(many) + ascii_uppercase[one]


def _sample_order(one: Sample) -> tuple[int, bool, bool]:
    return one.step, one.stage == sample_ratings.FINAL_STAGE, one.stage != "before"


def _step_label(stage: str, step: int) -> str:
    if stage == "before":
        return "Before training"
    return "After training" if stage == sample_ratings.FINAL_STAGE else f"Step {step}"
