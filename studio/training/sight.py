"""A row as a model will see it: its tokens, what is learnt and what is lost. No torch."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice

from transformers import PreTrainedTokenizerBase

from studio.desk import SHOWN_TEXT, SHOWN_TOKENS, Asked, Source, Templates, Token, Tokens, Written
from studio.errors import InvalidError, TrainingError
from studio.training import templates
from studio.training.labels import IGNORED, Labelled, labelled, until_last_answer
from studio.training.rows import Row, taught
from studio.training.templates import Span, Template

_TITLES: dict[Source, str] = {
    "model": "The model's own",
    "chatml": "ChatML",
    "plain": "Plain text",
}
_PROBE = Row(
    messages=(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is two plus two?"},
        {"role": "assistant", "content": "Four."},
    )
)


def tokens(asked: Asked, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Return what training would make of a row, by the very same code.

    Raises:
        InvalidError: it is no row.
        TrainingError: the model's chat template cannot write it, or there is none.

    """
    row = _row(asked)
    if row is None:
        return _nothing("This answer was judged bad: nothing of this row is learnt.")
    template = None
    if row.text is None:
        templates.install(tokenizer, asked.chat_template)
        template = Template(tokenizer)
    (found,) = labelled([row], template, tokenizer)
    return _seen(asked, row, found, list(_shown(row, found, template, tokenizer, asked.max_length)))


def choices(asked: Asked, tokenizer: PreTrainedTokenizerBase) -> Templates:
    """Return what the other chat templates make of a row, or of a small talk in place of a text.

    The one that was asked about is not tried: it may be what has just failed, at length.
    """
    row = _row(asked)
    if row is None or row.text is not None or not until_last_answer(row).messages:
        row = _PROBE
    own, end = tokenizer.chat_template, tokenizer.eos_token
    found: list[Written] = []
    for name in [one for one in _TITLES if one != asked.chat_template]:
        tokenizer.chat_template, tokenizer.eos_token = own, end
        found.append(_choice(name, row, tokenizer))
    return Templates(has_own=bool(own), choices=found)


def _row(asked: Asked) -> Row | None:
    try:
        return taught(asked.row, asked.number, "training")
    except ValueError as error:
        raise InvalidError(
            f"This row cannot be learnt from: {error}.",
            hint="A row is a conversation (messages), or text.",
            param="row",
        ) from error


def _shown(
    row: Row,
    found: Labelled,
    template: Template | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Iterator[Token]:
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    starts = template.starts(until_last_answer(row), found.text) if template else [0]
    told = 0
    both = zip(found.ids, found.labels, found.offsets, strict=True)
    for place, (token, label, (start, end)) in enumerate(islice(both, SHOWN_TOKENS)):
        is_written = end > start
        # Tokenizers leave spaces out of their offsets: they belong to the token behind them.
        text = found.text[told:end] if is_written else tokenizer.convert_ids_to_tokens(token)
        yield Token(
            id=token,
            text=text,
            start=start,
            end=end,
            learnt=place > 0 and label != IGNORED,
            special=token in special,
            turn=max(0, bisect_right(starts, max(start, told)) - 1),
            cut=place >= max_length,
        )
        told = max(told, end)


def _seen(asked: Asked, row: Row, found: Labelled, shown: list[Token]) -> Tokens:
    total, most = len(found.ids), asked.max_length
    return Tokens(
        tokens=shown,
        total=total,
        learnt=_learnt(found, 1, most),
        cut=max(0, total - most),
        cut_at=most if total > most else None,
        roles=[turn["role"] for turn in until_last_answer(row).messages],
        template=asked.chat_template if row.text is None else None,
        sentences=list(_sentences(asked, row)),
        warnings=list(_warnings(found, most)),
    )


def _learnt(found: Labelled, start: int, end: int | None) -> int:
    labels = found.labels[start:end]
    return len(labels) - labels.count(IGNORED)


def _sentences(asked: Asked, row: Row) -> Iterator[str]:
    if row.text is not None:
        yield "Text without turns: every token is learnt, and no chat template is used."
    if "chosen" in asked.row:
        yield "Of this pair, the chosen answer is learnt."
    left = len(row.messages) - len(until_last_answer(row).messages)
    if left and left < len(row.messages):
        what = "The last turn teaches" if left == 1 else f"The last {left} turns teach"
        yield f"{what} nothing, for no answer to learn follows; left out."


def _warnings(found: Labelled, most: int) -> Iterator[str]:
    behind = _learnt(found, most, None)
    if not _learnt(found, 1, most):
        why = (
            f"what is to be learnt begins behind the cut at {most:,} tokens"
            if behind
            else "it has no answer to learn"
        )
        yield f"Nothing of this row is learnt: {why}. The row is left out."
    elif behind:
        cut = len(found.ids) - most
        share = "all" if behind == cut else f"{behind:,}"
        yield f"{cut:,} tokens are cut off, {share} of which would have been learnt."


def _nothing(why: str) -> Tokens:
    return Tokens(
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


def _choice(name: Source, row: Row, tokenizer: PreTrainedTokenizerBase) -> Written:
    pieces: list[tuple[str, bool]] = []
    refused, text = "", ""
    try:
        templates.install(tokenizer, name)
        (written,) = Template(tokenizer).write([until_last_answer(row)])
        text = written.text
        pieces = list(_pieces(text[:SHOWN_TEXT], written.answers))
    except TrainingError as error:
        refused = error.message
    return Written(
        name=name,
        title=_TITLES[name],
        refused=refused,
        pieces=pieces,
        shortened=len(text) > SHOWN_TEXT,
    )


def _pieces(text: str, answers: Sequence[Span]) -> Iterator[tuple[str, bool]]:
    at = 0
    for start, end in answers:
        if at < start:
            yield text[at:start], False
        if start < len(text):
            yield text[start:end], True
        at = end
    if at < len(text):
        yield text[at:], False
