"""Tokenise rows, and label the tokens that are trained on. Needs no torch."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import (
    ChatTemplate,
    ChatTemplateError,
    RenderedConversation,
)
from studio.training.data.image_messages import count_repeats, repeat
from studio.training.data.rows import TrainingRow, is_trained_on
from studio.training.data.template_process import Span
from studio.training.models import tokenizers
from studio.weights.image_text import ImageTokens

IGNORE_INDEX = -100
"""The label of a token that the model reads but is not trained on."""

_CHUNK_ROWS = 1000


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A row as the model reads it, before truncation."""

    ids: list[int]
    labels: list[int]
    """The token where it is trained on, else `IGNORE_INDEX`."""
    text: str
    offsets: list[Span]
    """Each token's span in the text; (0, 0) for tokens that the tokenizer adds."""


def label_rows(
    rows: Sequence[TrainingRow], template: ChatTemplate | None, tokenizer: PreTrainedTokenizerBase
) -> Iterator[LabelledRow]:
    """Yield each row as tokens; in chunks, because tokenizers use every core.

    Text needs no template: every token is trained on, and an end-of-text token closes it.
    """
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[start : start + _CHUNK_ROWS]
        conversations = _label_conversations(
            [row for row in chunk if row.text is None], template, tokenizer
        )
        texts = _label_texts([row.text for row in chunk if row.text is not None], tokenizer)
        for row in chunk:
            yield next(conversations if row.text is None else texts)


def cut_after_last_answer(row: TrainingRow) -> TrainingRow:
    """Cut what follows the last answer that is trained on: it has no effect on training.

    A task is a prompt as a whole.
    """
    if row.is_task:
        return row
    last = max((i for i, turn in enumerate(row.messages) if is_trained_on(turn)), default=-1)
    return replace(row, messages=row.messages[: last + 1])


def _label_conversations(
    rows: Sequence[TrainingRow], template: ChatTemplate | None, tokenizer: PreTrainedTokenizerBase
) -> Iterator[LabelledRow]:
    if not rows:
        return
    assert template is not None  # noqa: S101 -- a job without conversations alone has none
    written = _render_rows(rows, template)
    batch = tokenizer(
        [conversation.text for conversation in written],
        add_special_tokens=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
    )
    labelled = map(_label_conversation, batch["input_ids"], batch["offset_mapping"], written)
    tokens = tokenizers.image_tokens(tokenizer)
    if tokens is None:
        yield from labelled
        return
    for row, one in zip(rows, labelled, strict=True):
        yield _repeat_images(cut_after_last_answer(row), one, tokens)


def _label_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[LabelledRow]:
    if not texts:
        return
    batch = tokenizer(list(texts), return_attention_mask=False, return_offsets_mapping=True)
    end = tokenizer.eos_token_id
    for text, ids, offsets in zip(texts, batch["input_ids"], batch["offset_mapping"], strict=True):
        if ids[-1:] != [end]:
            ids.append(end)
            offsets.append((0, 0))
        # The first token is never predicted, so it is never trained on.
        yield LabelledRow(ids, [IGNORE_INDEX, *ids[1:]], text, offsets)


def _render_rows(rows: Sequence[TrainingRow], template: ChatTemplate) -> list[RenderedConversation]:
    """Render rows with the template; if that fails, find the row that caused it."""
    cut_rows = [cut_after_last_answer(row) for row in rows]
    try:
        return template.render(cut_rows)
    except ChatTemplateError:
        for row in cut_rows:
            _refuse_unrenderable(row, template)
        raise


def _refuse_unrenderable(row: TrainingRow, template: ChatTemplate) -> None:
    try:
        template.render([row])
    except ChatTemplateError as error:
        raise TrainingError(
            "bad_row",
            f"{row.location} is rejected by the model's chat template: {error.reason}.",
            hint="Fix that row (check the order of its roles, for example), or choose "
            "another chat template.",
        ) from error


def _repeat_images(row: TrainingRow, labelled: LabelledRow, tokens: ImageTokens) -> LabelledRow:
    """Repeat the token that stands for each image as often as its size asks for.

    These tokens are never trained on, not even in an answer.
    """
    repeats = count_repeats(labelled.ids, row.messages, tokens, row.location)
    labels = [IGNORE_INDEX if label == tokens.token_id else label for label in labelled.labels]
    return replace(
        labelled,
        ids=repeat(labelled.ids, repeats),
        labels=repeat(labels, repeats),
        offsets=repeat(labelled.offsets, repeats),
    )


def _label_conversation(
    ids: list[int], offsets: list[Span], written: RenderedConversation
) -> LabelledRow:
    labels = [IGNORE_INDEX] * len(ids)
    for start, end in written.answers:
        first = bisect_right(offsets, start, key=lambda offset: offset[1])
        last = bisect_left(offsets, end, key=lambda offset: offset[0])
        labels[first:last] = ids[first:last]
    return LabelledRow(ids, labels, written.text, offsets)
