"""Count a dataset's tokens as training would see them. Needs no torch."""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.intake.quality import length_stats
from studio.intake.quality.length_stats import PartStats, RefusedRows
from studio.protocols.tokenizer_service import TemplateSource
from studio.training.data import chat_templates
from studio.training.data.chat_templates import ChatTemplate, ChatTemplateError
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, cut_after_last_answer, label_rows
from studio.training.data.rows import TrainingRow, chosen_answer, iter_rows, rejected_answer
from studio.training.data.template_process import Span

TokeniseRows = Callable[[Sequence[TrainingRow]], Iterator[LabelledRow]]
"""Tokenises rows."""

Sequences = Sequence[tuple[TrainingRow, LabelledRow]]
"""What the model reads for one row: one sequence, or both answers of a pair."""

_CHUNK_ROWS, _CHUNK_BYTES = 500, 4 * 2**20
"""Rows and bytes held in memory at a time."""
_MAX_REASON_CHARS = 300
"""Limit for the length of a reason: a template may raise any message."""


def make_tokeniser(
    tokenizer: PreTrainedTokenizerBase, chat_template: TemplateSource
) -> TokeniseRows:
    """Return a function that tokenises rows as a run would; it needs a template only for turns."""
    templates: list[ChatTemplate] = []

    def write(rows: Sequence[TrainingRow]) -> Iterator[LabelledRow]:
        if not templates and any(row.text is None for row in rows):
            chat_templates.set_chat_template(tokenizer, chat_template)
            templates.append(chat_templates.load(tokenizer))
        return label_rows(rows, templates[0] if templates else None, tokenizer)

    return write


def count_tokens(
    path: Path,
    part: str,
    write: TokeniseRows,
    report: Callable[[int, int], None],
    *,
    with_bad: bool = False,
) -> PartStats:
    """Count the rows of a file; `report` is called after each chunk with the rows and bytes done.

    With `with_bad`, answers that are rated bad count, too, and both answers of each pair.

    Raises:
        TrainingError: a line is not a row, or there is no chat template for its turns.

    """
    stats = PartStats()
    longest: list[tuple[int, int]] = []
    shortest: list[tuple[int, int]] = []
    done = 0
    for rows, end in _chunks(path, part, with_bad=with_bad):
        usable = [row for row in rows if row is not None]
        stats.left_out += len(rows) - len(usable)
        for sequences in _tokenise_chunk(usable, write, stats, with_bad=with_bad):
            _count_row(stats, sequences)
            number = sequences[0][0].number
            size = max(len(labelled.ids) for _row, labelled in sequences)
            _keep_largest(longest, (size, -number), length_stats.MAX_LONGEST_ROWS)
            _keep_largest(shortest, (-size, -number), length_stats.MAX_SHORTEST_ROWS)
        done += len(rows)
        report(done, end)
    stats.longest = [
        length_stats.RowLength(size, -number) for size, number in sorted(longest, reverse=True)
    ]
    stats.shortest = [
        length_stats.RowLength(-size, -number) for size, number in sorted(shortest, reverse=True)
    ]
    return stats


def _chunks(
    path: Path, part: str, *, with_bad: bool
) -> Iterator[tuple[list[TrainingRow | None], int]]:
    rows: list[TrainingRow | None] = []
    start = end = 0
    for row, end in iter_rows(path, part, with_bad=with_bad):
        rows.append(row)
        if len(rows) == _CHUNK_ROWS or end - start > _CHUNK_BYTES:
            yield rows, end
            rows, start = [], end
    yield rows, end


def _tokenise_chunk(
    rows: Sequence[TrainingRow], write: TokeniseRows, stats: PartStats, *, with_bad: bool
) -> Iterator[Sequences]:
    """Tokenise rows together; if that fails, one by one, and record which are refused."""
    split = [_sequences(row, with_bad=with_bad) for row in rows]
    try:
        labelled_rows = iter(list(write([row for sequences in split for row in sequences])))
    except TrainingError as error:
        if error.code == "no_chat_template":
            raise
    else:
        for sequences in split:
            yield [(row, next(labelled_rows)) for row in sequences]
        return
    for sequences in split:
        try:
            yield list(zip(sequences, list(write(sequences)), strict=True))
        except TrainingError as error:
            _record_refusal(stats, sequences[0], error)


def _sequences(row: TrainingRow, *, with_bad: bool) -> list[TrainingRow]:
    """Return what the model reads for a row: both answers to a prompt, or all texts of a pair."""
    if row.pair:
        return [TrainingRow(text=text, number=row.number, part=row.part) for text in row.pair]
    return [chosen_answer(row), rejected_answer(row)] if row.rejected and with_bad else [row]


def _record_refusal(stats: PartStats, row: TrainingRow, error: TrainingError) -> None:
    cause = error.__cause__ if isinstance(error.__cause__, ChatTemplateError) else error
    reason = cause.reason if isinstance(cause, ChatTemplateError) else error.message
    reason = reason[:_MAX_REASON_CHARS]
    if reason not in stats.refused and len(stats.refused) >= length_stats.MAX_REASONS:
        reason = length_stats.OTHER_REASONS
    refused_rows = stats.refused.setdefault(reason, RefusedRows())
    refused_rows.rows += 1
    if len(refused_rows.numbers) < length_stats.MAX_SHORTEST_ROWS:
        refused_rows.numbers.append(row.number)


def _count_row(stats: PartStats, sequences: Sequences) -> None:
    sizes = sorted(len(labelled.ids) for _row, labelled in sequences)
    stats.rows += 1
    stats.lengths.add(sizes[-1])
    firsts = [_count_sequence(stats, row, labelled) for row, labelled in sequences]
    if sequences[0][0].is_task:
        return
    for size in sizes[:-1]:
        stats.shorter.add(size)
    if sequences[0][0].text is None and len(sequences) > 1:
        stats.pairs += 1
        firsts.append(_first_difference(*(labelled.ids for _row, labelled in sequences)))
    if None in firsts:
        stats.unlearnt += 1
    else:
        stats.needs.add(max(first or 0 for first in firsts))


def _count_sequence(stats: PartStats, row: TrainingRow, labelled: LabelledRow) -> int | None:
    """Count a sequence; return the position, from 1, of its first trained token, if any."""
    # The first token is never predicted, so its label has no effect.
    is_trained = [False, *(label != IGNORE_INDEX for label in labelled.labels[1:])]
    stats.tokens += len(labelled.ids)
    stats.learnt += sum(is_trained)
    stats.most_learnt = max(stats.most_learnt, sum(is_trained))
    for start, end in _trained_spans(is_trained):
        stats.edges.add(end)
        stats.edges.add(start, -1)
    _count_roles(stats, row, labelled, is_trained)
    return is_trained.index(True) + 1 if True in is_trained else None


def _first_difference(ids: Sequence[int], other_ids: Sequence[int]) -> int | None:
    """Return the first position, from 1, at which two sequences differ; None if they are equal."""
    places = zip_longest(ids, other_ids)
    return next((place for place, (one, other) in enumerate(places, 1) if one != other), None)


def _trained_spans(is_trained: list[bool]) -> Iterator[Span]:
    """Yield each run of trained tokens: the index before it, and its last index."""
    start = 0
    for trained, group in groupby(is_trained):
        end = start + sum(1 for _ in group)
        if trained:
            yield start, end
        start = end


def _count_roles(
    stats: PartStats, row: TrainingRow, labelled: LabelledRow, is_trained: list[bool]
) -> None:
    """Count tokens by role.

    Trained tokens outside a turn's content, such as tool calls and the end mark, count as the
    assistant's; everything else that the template adds counts as the template's.
    """
    size, trained_total = len(labelled.ids), sum(is_trained)
    if row.text is not None:
        stats.roles["text"] += size
        stats.learnt_roles["text"] += trained_total
        return
    done = 0
    tokens_by_role, trained_by_role = Counter[str](), Counter[str]()
    for role, (start, end) in _turn_spans(row, labelled.text):
        first = max(done, bisect_right(labelled.offsets, start, key=lambda offset: offset[1]))
        done = max(first, bisect_left(labelled.offsets, end, key=lambda offset: offset[0]))
        tokens_by_role[role] += done - first
        trained_by_role[role] += sum(is_trained[first:done])
    extra_trained = trained_total - trained_by_role.total()
    stats.roles.update(
        tokens_by_role | Counter(template=size - extra_trained - tokens_by_role.total())
    )
    stats.roles["assistant"] += extra_trained
    stats.learnt_roles.update(trained_by_role)
    stats.learnt_roles["assistant"] += extra_trained


def _turn_spans(row: TrainingRow, text: str) -> Iterator[tuple[str, Span]]:
    """Find each turn's content in the rendered text; rewritten content is not found."""
    position = 0
    for turn in cut_after_last_answer(row).messages:
        content = turn["content"].strip()
        start = text.find(content, position) if content else -1
        if start >= 0:
            position = start + len(content)
            yield turn["role"], (start, position)


def _keep_largest(heap: list[tuple[int, int]], entry: tuple[int, int], limit: int) -> None:
    """Add an entry, keeping only the `limit` largest."""
    if len(heap) < limit:
        heapq.heappush(heap, entry)
    else:
        heapq.heappushpop(heap, entry)
