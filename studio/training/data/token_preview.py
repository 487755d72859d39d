"""Preview a row as the model sees it: tokens, labels and truncation. Needs no torch."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from transformers import PreTrainedTokenizerBase

from studio.errors import InvalidError, TrainingError
from studio.protocols.tokenizer_service import (
    MAX_PREVIEW_CHARACTERS,
    MAX_PREVIEW_TOKENS,
    PackedExample,
    PackedRow,
    RowLengths,
    TemplatePreview,
    TemplatePreviews,
    TemplateSource,
    Token,
    TokenizerRequest,
    TokenPreview,
)
from studio.training.data import chat_templates, packing_preview
from studio.training.data.chat_templates import ChatTemplate, Span
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, cut_after_last_answer, label_rows
from studio.training.data.rows import TrainingRow, to_training_row

_TITLES: dict[TemplateSource, str] = {
    "model": "The model's own",
    "chatml": "ChatML",
    "plain": "Plain text",
}
_PREVIOUS_ROW_TOKENS = 40
"""How many tokens of the previous row are shown: only its end matters."""

_TokenIterator = Callable[..., Iterator[Token]]

_EXAMPLE_ROW = TrainingRow(
    messages=(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is two plus two?"},
        {"role": "assistant", "content": "Four."},
    )
)


def preview_tokens(
    asked: TokenizerRequest, tokenizer: PreTrainedTokenizerBase, sizes: RowLengths | None = None
) -> TokenPreview:
    """Return what training makes of a row, using the same code.

    If the row is packed with others, `sizes` has the lengths of all rows it may be packed with.

    Raises:
        InvalidError: it is not a row.
        TrainingError: the chat template cannot render it, or there is none.

    """
    row = _parse_row(asked)
    if row is None:
        return _empty_preview("This answer was rated bad, so nothing in this row is trained on.")
    writer = packing_preview.load_template(asked, [row], tokenizer)
    show = partial(_iter_tokens, template=writer, tokenizer=tokenizer, max_length=asked.max_length)
    (found,) = label_rows([row], writer, tokenizer)
    seen = _build_preview(asked, row, found, list(show(row, found)))
    if sizes is None or not seen.learnt:
        return seen
    if trouble := sizes.trouble or _held_out_note(asked, sizes):
        return seen.model_copy(update={"sentences": [*seen.sentences, trouble]})
    together = packing_preview.rows_packed_with(asked, sizes)
    if not together:
        return seen
    rows = packing_preview.read_rows(asked, together)
    both = zip(rows, label_rows(rows, writer, tokenizer), strict=True)
    pack = _build_pack(
        asked, together, {row.number: partial(show, row, found) for row, found in both}
    )
    return seen.model_copy(update={"pack": pack})


def preview_templates(
    asked: TokenizerRequest, tokenizer: PreTrainedTokenizerBase
) -> TemplatePreviews:
    """Preview the other chat templates on a row, or on a short conversation if the row is text.

    The requested template is skipped: it may be the one that has just failed, after a long time.
    """
    row = _parse_row(asked)
    if row is None or row.text is not None or not cut_after_last_answer(row).messages:
        row = _EXAMPLE_ROW
    own, end = tokenizer.chat_template, tokenizer.eos_token
    found: list[TemplatePreview] = []
    for name in [one for one in _TITLES if one != asked.chat_template]:
        tokenizer.chat_template, tokenizer.eos_token = own, end
        found.append(_preview_template(name, row, tokenizer))
    return TemplatePreviews(has_own=bool(own), choices=found)


def _parse_row(asked: TokenizerRequest) -> TrainingRow | None:
    try:
        return to_training_row(asked.row, asked.number, "training")
    except ValueError as error:
        raise InvalidError(
            f"This row cannot be used for training: {error}.",
            hint="A row must be a conversation (messages) or text.",
            param="row",
        ) from error


def _held_out_note(asked: TokenizerRequest, sizes: RowLengths) -> str:
    if asked.number not in sizes.held:
        return ""
    return "This row is held out for validation and does not share an example."


def _build_pack(
    asked: TokenizerRequest, together: Mapping[int, int], show: Mapping[int, _TokenIterator]
) -> PackedExample:
    """Return the rows of an example, with tokens for those around the requested row."""
    left, shown = (
        MAX_PREVIEW_TOKENS - min(together[asked.number], MAX_PREVIEW_TOKENS),
        dict[int, range](),
    )
    before = max((number for number in together if number < asked.number), default=None)
    if before is not None:
        shown[before] = range(max(0, together[before] - _PREVIOUS_ROW_TOKENS), together[before])
    for number in (number for number in together if number > asked.number):
        shown[number] = range(min(left, together[number]))
        left -= len(shown[number])
    rows = [
        PackedRow(
            number=number,
            size=size,
            tokens=list(show[number](places=shown[number])) if shown.get(number) else [],
        )
        for number, size in together.items()
    ]
    return PackedExample(rows=rows, size=sum(together.values()), limit=asked.max_length)


def _iter_tokens(
    row: TrainingRow,
    found: LabelledRow,
    *,
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    places: range = range(MAX_PREVIEW_TOKENS),
) -> Iterator[Token]:
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    starts = template.turn_starts(cut_after_last_answer(row), found.text) if template else [0]
    told = max((end for _, end in found.offsets[: places.start]), default=0)
    for place in islice(places, max(0, len(found.ids) - places.start)):
        token, label, (start, end) = found.ids[place], found.labels[place], found.offsets[place]
        is_written = end > start
        # Tokenizers leave spaces out of their offsets: they belong to the token after them.
        text = found.text[told:end] if is_written else tokenizer.convert_ids_to_tokens(token)
        yield Token(
            id=token,
            text=text,
            start=start,
            end=end,
            learnt=place > 0 and label != IGNORE_INDEX,
            special=token in special,
            turn=max(0, bisect_right(starts, max(start, told)) - 1),
            cut=place >= max_length,
        )
        told = max(told, end)


def _build_preview(
    asked: TokenizerRequest, row: TrainingRow, found: LabelledRow, shown: list[Token]
) -> TokenPreview:
    total, most = len(found.ids), asked.max_length
    return TokenPreview(
        tokens=shown,
        total=total,
        learnt=_count_trained(found, 1, most),
        cut=max(0, total - most),
        cut_at=most if total > most else None,
        roles=[turn["role"] for turn in cut_after_last_answer(row).messages],
        template=asked.chat_template if row.text is None else None,
        sentences=list(_notes(asked, row)),
        warnings=list(_warnings(found, most)),
    )


def _count_trained(found: LabelledRow, start: int, end: int | None) -> int:
    labels = found.labels[start:end]
    return len(labels) - labels.count(IGNORE_INDEX)


def _notes(asked: TokenizerRequest, row: TrainingRow) -> Iterator[str]:
    if row.text is not None:
        yield "Text without turns: every token is trained on, and no chat template is used."
    if "chosen" in asked.row:
        yield "Only the chosen answer of this pair is trained on."
    left = len(row.messages) - len(cut_after_last_answer(row).messages)
    if left and left < len(row.messages):
        what = "The last turn is" if left == 1 else f"The last {left} turns are"
        yield f"{what} not used for training, because no answer follows."


def _warnings(found: LabelledRow, most: int) -> Iterator[str]:
    behind = _count_trained(found, most, None)
    if not _count_trained(found, 1, most):
        why = (
            f"the part to train on begins after the limit of {most:,} tokens"
            if behind
            else "it has no answer to train on"
        )
        yield f"Nothing in this row is trained on: {why}. The row is left out."
    elif behind:
        cut = len(found.ids) - most
        share = "all" if behind == cut else f"{behind:,}"
        yield f"{cut:,} tokens are truncated, {share} of which would have been trained on."


def _empty_preview(why: str) -> TokenPreview:
    return TokenPreview(
        tokens=[],
        total=0,
        learnt=0,
        cut=0,
        cut_at=None,
        roles=[],
        template=None,
        sentences=[],
        warnings=[why],
    )


def _preview_template(
    name: TemplateSource, row: TrainingRow, tokenizer: PreTrainedTokenizerBase
) -> TemplatePreview:
    pieces: list[tuple[str, bool]] = []
    refused, text = "", ""
    try:
        chat_templates.set_chat_template(tokenizer, name)
        (written,) = ChatTemplate(tokenizer).render([cut_after_last_answer(row)])
        text = written.text
        pieces = list(_split_answers(text[:MAX_PREVIEW_CHARACTERS], written.answers))
    except TrainingError as error:
        refused = error.message
    return TemplatePreview(
        name=name,
        title=_TITLES[name],
        refused=refused,
        pieces=pieces,
        shortened=len(text) > MAX_PREVIEW_CHARACTERS,
    )


def _split_answers(text: str, answers: Sequence[Span]) -> Iterator[tuple[str, bool]]:
    at = 0
    for start, end in answers:
        if at < start:
            yield text[at:start], False
        if start < len(text):
            yield text[start:end], True
        at = end
    if at < len(text):
        yield text[at:], False
