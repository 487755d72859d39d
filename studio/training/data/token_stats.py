"""Count a dataset's tokens as training would see them. Needs no torch."""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.intake.quality import length_stats
from studio.intake.quality.length_stats import PartStats, RefusedRows
from studio.protocols.tokenizer_service import TemplateSource
from studio.training.data import chat_templates
from studio.training.data.chat_templates import ChatTemplate, ChatTemplateError, Span
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, cut_after_last_answer, label_rows
from studio.training.data.rows import TrainingRow, iter_rows

TokeniseRows = Callable[[Sequence[TrainingRow]], Iterator[LabelledRow]]
"""Tokenises rows."""

_CHUNK_ROWS, _CHUNK_BYTES = 500, 4 * 2**20
"""Rows and bytes held in memory at a time."""
_MAX_REASON_CHARS = 300
"""Limit for the length of a reason: a template may raise any message."""


def make_tokeniser(
    tokenizer: PreTrainedTokenizerBase, chat_template: TemplateSource
) -> TokeniseRows:
    """Return a function that tokenises rows as a run would; it needs a template only for turns."""
    made: list[ChatTemplate] = []

    def write(rows: Sequence[TrainingRow]) -> Iterator[LabelledRow]:
        if not made and any(row.text is None for row in rows):
            chat_templates.set_chat_template(tokenizer, chat_template)
            made.append(ChatTemplate(tokenizer))
        return label_rows(rows, made[0] if made else None, tokenizer)

    return write


def count_tokens(
    path: Path, part: str, write: TokeniseRows, told: Callable[[int, int], None]
) -> PartStats:
    """Count the rows of a file; `report` is called after each chunk with the rows and bytes done.

    Raises:
        TrainingError: a line is not a row, or there is no chat template for its turns.

    """
    found = PartStats()
    longest: list[tuple[int, int]] = []
    shortest: list[tuple[int, int]] = []
    done = 0
    for rows, end in _chunks(path, part):
        some = [row for row in rows if row is not None]
        found.left_out += len(rows) - len(some)
        for row, seen in _tokenise_chunk(some, write, found):
            _count_row(found, row, seen)
            _keep_largest(longest, (len(seen.ids), -row.number), length_stats.MAX_LONGEST_ROWS)
            _keep_largest(shortest, (-len(seen.ids), -row.number), length_stats.MAX_SHORTEST_ROWS)
        done += len(rows)
        told(done, end)
    found.longest = [
        length_stats.RowLength(size, -number) for size, number in sorted(longest, reverse=True)
    ]
    found.shortest = [
        length_stats.RowLength(-size, -number) for size, number in sorted(shortest, reverse=True)
    ]
    return found


def _chunks(path: Path, part: str) -> Iterator[tuple[list[TrainingRow | None], int]]:
    rows: list[TrainingRow | None] = []
    start = end = 0
    for row, end in iter_rows(path, part):
        rows.append(row)
        if len(rows) == _CHUNK_ROWS or end - start > _CHUNK_BYTES:
            yield rows, end
            rows, start = [], end
    yield rows, end


def _tokenise_chunk(
    rows: Sequence[TrainingRow], write: TokeniseRows, found: PartStats
) -> Iterator[tuple[TrainingRow, LabelledRow]]:
    """Tokenise rows together; if that fails, one by one, and record which are refused."""
    try:
        seen = list(write(rows))
    except TrainingError as error:
        if error.code == "no_chat_template":
            raise
    else:
        yield from zip(rows, seen, strict=True)
        return
    for row in rows:
        try:
            (one,) = write([row])
        except TrainingError as error:
            _record_refusal(found, row, error)
        else:
            yield row, one


def _record_refusal(found: PartStats, row: TrainingRow, error: TrainingError) -> None:
    cause = error.__cause__ if isinstance(error.__cause__, ChatTemplateError) else error
    reason = cause.reason if isinstance(cause, ChatTemplateError) else error.message
    reason = reason[:_MAX_REASON_CHARS]
    if reason not in found.refused and len(found.refused) >= length_stats.MAX_REASONS:
        reason = length_stats.OTHER_REASONS
    known = found.refused.setdefault(reason, RefusedRows())
    known.rows += 1
    if len(known.numbers) < length_stats.MAX_SHORTEST_ROWS:
        known.numbers.append(row.number)


def _count_row(found: PartStats, row: TrainingRow, seen: LabelledRow) -> None:
    size = len(seen.ids)
    # The first token is never predicted, so its label has no effect.
    is_learnt = [False, *(label != IGNORE_INDEX for label in seen.labels[1:])]
    found.rows += 1
    found.tokens += size
    found.learnt += sum(is_learnt)
    found.most_learnt = max(found.most_learnt, sum(is_learnt))
    found.lengths.add(size)
    if True in is_learnt:
        found.needs.add(is_learnt.index(True) + 1)
    else:
        found.unlearnt += 1
    for start, end in _trained_spans(is_learnt):
        found.edges.add(end)
        found.edges.add(start, -1)
    _count_roles(found, row, seen, is_learnt)


def _trained_spans(is_learnt: list[bool]) -> Iterator[Span]:
    """Yield each run of trained tokens: the index before it, and its last index."""
    at = 0
    for one, same in groupby(is_learnt):
        end = at + sum(1 for _ in same)
        if one:
            yield at, end
        at = end


def _count_roles(
    found: PartStats, row: TrainingRow, seen: LabelledRow, is_learnt: list[bool]
) -> None:
    """Count tokens by role.

    Trained tokens outside a turn's content, such as tool calls and the end mark, count as the
    assistant's; everything else that the template adds counts as the template's.
    """
    size, learnt = len(seen.ids), sum(is_learnt)
    if row.text is not None:
        found.roles["text"] += size
        found.learnt_roles["text"] += learnt
        return
    done = 0
    said, taught = Counter[str](), Counter[str]()
    for role, (start, end) in _turn_spans(row, seen.text):
        first = max(done, bisect_right(seen.offsets, start, key=lambda offset: offset[1]))
        done = max(first, bisect_left(seen.offsets, end, key=lambda offset: offset[0]))
        said[role] += done - first
        taught[role] += sum(is_learnt[first:done])
    beside = learnt - taught.total()
    found.roles.update(said | Counter(template=size - beside - said.total()))
    found.roles["assistant"] += beside
    found.learnt_roles.update(taught)
    found.learnt_roles["assistant"] += beside


def _turn_spans(row: TrainingRow, text: str) -> Iterator[tuple[str, Span]]:
    """Find each turn's content in the rendered text; rewritten content is not found."""
    at = 0
    for turn in cut_after_last_answer(row).messages:
        content = turn["content"].strip()
        start = text.find(content, at) if content else -1
        if start >= 0:
            at = start + len(content)
            yield turn["role"], (start, at)


def _keep_largest(most: list[tuple[int, int]], one: tuple[int, int], limit: int) -> None:
    """Add an entry, keeping only the `limit` largest."""
    if len(most) < limit:
        heapq.heappush(most, one)
    else:
        heapq.heappushpop(most, one)
