"""Preview a row as the model sees it: tokens, labels and truncation. Needs no torch.

Also tokenise a prompt for the inference service to continue.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from itertools import islice

from transformers import PreTrainedTokenizerBase

from studio.errors import InvalidError, TrainingError
from studio.protocols.tokenizer_service import (
    MAX_PREVIEW_CHARACTERS,
    MAX_PREVIEW_TOKENS,
    PackedExample,
    PackedRow,
    PromptTokens,
    RejectedPreview,
    TemplatePreview,
    TemplatePreviews,
    TemplateSource,
    Token,
    TokenizerRequest,
    TokenPreview,
)
from studio.training.data import chat_templates, packing, prompt_answer, rated_steps, tagged_words
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.image_prompts import repeat_images
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, cut_after_last_answer, label_rows
from studio.training.data.preview_notes import (
    count_trained,
    held_out_note,
    pair_warnings,
    row_notes,
    row_warnings,
)
from studio.training.data.rows import (
    TrainingRow,
    chosen_answer,
    is_rated_bad,
    rated_answer,
    rejected_answer,
    to_training_row,
)
from studio.training.data.template_process import Span
from studio.training.models import languages
from studio.weights.language_codes import Languages

_TITLES: dict[TemplateSource, str] = {
    "model": "The model's own",
    "chatml": "ChatML",
    "none": "None",
    "plain": "Plain text",
}
_PREVIOUS_ROW_TOKENS = 40
"""How many tokens of the previous row are shown: only its end matters."""

_PAIR_NOTE = "Supervised training learns from the better answer only; other methods compare both."

_TokenIterator = Callable[..., Iterator[Token]]

_EXAMPLE_ROW = TrainingRow(
    messages=(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is two plus two?"},
        {"role": "assistant", "content": "Four."},
    )
)


def preview_tokens(
    request: TokenizerRequest,
    tokenizer: PreTrainedTokenizerBase,
    measured: packing.MeasuredRows | None = None,
) -> TokenPreview:
    """Return what training makes of a row, using the same code.

    If the row is packed with others, `measured` has all rows it may be packed with.

    Raises:
        InvalidError: it is not a row.
        TrainingError: the chat template cannot render it, or there is none.

    """
    row = _parse_row(request)
    if is_rated_bad(row) and not request.with_bad:
        return _empty_preview("This answer was rated bad, so nothing in this row is trained on.")
    template = packing.load_template(request, [row], tokenizer)
    show = partial(
        _iter_tokens, template=template, tokenizer=tokenizer, max_length=request.max_length
    )
    if row.rejected and request.with_bad:
        return _build_pair(request, row, template, tokenizer, show)
    if row.is_good is not None and request.with_bad:
        row = rated_answer(row)
    (labelled,) = label_rows([row], template, tokenizer)
    preview = _build_preview(request, row, labelled, list(show(row, labelled)))
    if measured is None or not preview.learnt:
        return preview
    sizes = measured.sizes
    if problem := sizes.trouble or held_out_note(request, sizes):
        return preview.model_copy(update={"sentences": [*preview.sentences, problem]})
    sizes_by_row = packing.rows_packed_with(request, sizes)
    if not sizes_by_row:
        return preview
    rows = packing.read_rows(request, sizes_by_row, measured.file)
    labelled_rows = zip(rows, label_rows(rows, template, tokenizer), strict=True)
    pack = _build_pack(
        request,
        sizes_by_row,
        {row.number: partial(show, row, labelled) for row, labelled in labelled_rows},
    )
    return preview.model_copy(update={"pack": pack})


def preview_templates(
    request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase
) -> TemplatePreviews:
    """Preview the other chat templates on a row, or on a short conversation if the row is text.

    The requested template is skipped: it may be the one that has just failed, after a long time.
    """
    row = _parse_row(request)
    if row.text is not None or not cut_after_last_answer(row).messages:
        row = _EXAMPLE_ROW
    own_template, eos_token = tokenizer.chat_template, tokenizer.eos_token
    previews: list[TemplatePreview] = []
    for name in [title_key for title_key in _TITLES if title_key != request.chat_template]:
        tokenizer.chat_template, tokenizer.eos_token = own_template, eos_token
        previews.append(_preview_template(name, row, tokenizer))
    return TemplatePreviews(has_own=bool(own_template), choices=previews)


def _parse_row(request: TokenizerRequest) -> TrainingRow:
    try:
        return to_training_row(request.row, request.number, "training")
    except ValueError as error:
        raise InvalidError(
            f"This row cannot be used for training: {error}.",
            hint="A row must be a conversation (messages) or text.",
            param="row",
        ) from error


def _build_pair(
    request: TokenizerRequest,
    row: TrainingRow,
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    show: _TokenIterator,
) -> TokenPreview:
    """Preview both answers of a preference, with the tokens marked that only one of them has."""
    rows = [chosen_answer(row), rejected_answer(row)]
    chosen, rejected = label_rows(rows, template, tokenizer)
    tokens, other_tokens = mark_differences(
        *(list(show(*one)) for one in zip(rows, (chosen, rejected), strict=True))
    )
    preview = _build_preview(request, rows[0], chosen, tokens)
    other = _build_preview(request, rows[1], rejected, other_tokens)
    return preview.model_copy(
        update={
            "rejected": RejectedPreview(
                **{name: getattr(other, name) for name in RejectedPreview.model_fields}
            ),
            "prompt_turns": row.prompt_turns,
            "sentences": [_PAIR_NOTE],
            "warnings": list(pair_warnings(chosen, rejected, request.max_length)),
        }
    )


def mark_differences(
    chosen: Sequence[Token], rejected: Sequence[Token]
) -> tuple[list[Token], list[Token]]:
    """Return the tokens of two answers, marked where they differ."""
    marked = [list(chosen), list(rejected)]
    ids, other_ids = ([token.id for token in tokens] for tokens in marked)
    for tag, *edges in SequenceMatcher(None, ids, other_ids).get_opcodes():
        if tag == "equal":
            continue
        for tokens, start, end in zip(marked, edges[::2], edges[1::2], strict=True):
            tokens[start:end] = [
                token.model_copy(update={"differs": True}) for token in tokens[start:end]
            ]
    return marked[0], marked[1]


def _build_pack(
    request: TokenizerRequest, sizes_by_row: Mapping[int, int], show: Mapping[int, _TokenIterator]
) -> PackedExample:
    """Return the rows of an example, with tokens for those around the requested row."""
    remaining, shown_ranges = (
        MAX_PREVIEW_TOKENS - min(sizes_by_row[request.number], MAX_PREVIEW_TOKENS),
        dict[int, range](),
    )
    before = max((number for number in sizes_by_row if number < request.number), default=None)
    if before is not None:
        shown_ranges[before] = range(
            max(0, sizes_by_row[before] - _PREVIOUS_ROW_TOKENS), sizes_by_row[before]
        )
    for number in (number for number in sizes_by_row if number > request.number):
        shown_ranges[number] = range(min(remaining, sizes_by_row[number]))
        remaining -= len(shown_ranges[number])
    rows = [
        PackedRow(
            number=number,
            size=size,
            tokens=list(show[number](places=shown_ranges[number]))
            if shown_ranges.get(number)
            else [],
        )
        for number, size in sizes_by_row.items()
    ]
    return PackedExample(rows=rows, size=sum(sizes_by_row.values()), limit=request.max_length)


def _iter_tokens(
    row: TrainingRow,
    labelled: LabelledRow,
    *,
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    places: range = range(MAX_PREVIEW_TOKENS),
) -> Iterator[Token]:
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special |= set(tokenizer.all_special_ids)
    starts = template.turn_starts(_shown_turns(row), labelled.text) if template else [0]
    text_end = max((end for _, end in labelled.offsets[: places.start]), default=0)
    for position in islice(places, max(0, len(labelled.ids) - places.start)):
        token, label, (start, end) = (
            labelled.ids[position],
            labelled.labels[position],
            labelled.offsets[position],
        )
        is_written = end > start
        # Tokenizers leave spaces out of their offsets: they belong to the token after them.
        text = labelled.text[text_end:end] if is_written else tokenizer.convert_ids_to_tokens(token)
        yield Token(
            id=token,
            text=text,
            start=start,
            end=end,
            learnt=position > 0 and label != IGNORE_INDEX,
            special=token in special,
            turn=max(0, bisect_right(starts, max(start, text_end)) - 1),
            cut=position >= max_length,
        )
        text_end = max(text_end, end)


def _shown_turns(row: TrainingRow) -> TrainingRow:
    """Return the turns of a row that the model reads; after a task, its own answer begins."""
    if row.is_task:
        return replace(row, messages=[*row.messages, {"role": "assistant", "content": ""}])
    return cut_after_last_answer(row)


def _build_preview(
    request: TokenizerRequest, row: TrainingRow, labelled: LabelledRow, tokens: list[Token]
) -> TokenPreview:
    total, max_length = len(labelled.ids), request.max_length
    return TokenPreview(
        tokens=tokens,
        total=total,
        learnt=count_trained(labelled, 1, max_length),
        cut=max(0, total - max_length),
        cut_at=max_length if total > max_length else None,
        roles=[turn["role"] for turn in _shown_turns(row).messages],
        template=request.chat_template if row.text is None else None,
        sentences=list(row_notes(request, row)),
        warnings=list(row_warnings(row, labelled, max_length)),
        is_good=row.is_good,
    )


def _empty_preview(warning: str) -> TokenPreview:
    return TokenPreview(
        tokens=[],
        total=0,
        learnt=0,
        cut=0,
        cut_at=None,
        roles=[],
        template=None,
        sentences=[],
        warnings=[warning],
    )


def _preview_template(
    name: TemplateSource, row: TrainingRow, tokenizer: PreTrainedTokenizerBase
) -> TemplatePreview:
    pieces: list[tuple[str, bool]] = []
    refused, text = "", ""
    try:
        chat_templates.set_chat_template(tokenizer, name)
        (written,) = chat_templates.load(tokenizer).render([cut_after_last_answer(row)])
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
    position = 0
    for start, end in answers:
        if position < start:
            yield text[position:start], False
        if start < len(text):
            yield text[start:end], True
        position = end
    if position < len(text):
        yield text[position:], False


def tokenise_row(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Return the tokens of a whole row, truncated as in training.

    Raises:
        InvalidError: it is no row that could be trained on.
        TrainingError: the chat template cannot render it.

    """
    row = _parse_row(request)
    if is_rated_bad(row):
        raise InvalidError("This row is not trained on.", hint="Send a conversation or a text.")
    template = packing.load_template(request, [row], tokenizer)
    (labelled,) = label_rows([row], template, tokenizer)
    return PromptTokens(ids=labelled.ids[: request.max_length], stops=[])


def tokenise_answer(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Return the tokens of a conversation up to the end of its last turn, an answer.

    Raises:
        InvalidError: it is no conversation, or its last turn is empty.
        TrainingError: the chat template cannot render it, or there is none.

    """
    row = rated_answer(_parse_row(request))
    chat_templates.set_chat_template(tokenizer, request.chat_template)
    (labelled,) = label_rows([row], chat_templates.load(tokenizer), tokenizer)
    places = [place for place, label in enumerate(labelled.labels) if label != IGNORE_INDEX]
    if not places:
        raise InvalidError("The answer has no tokens.", param="messages")
    return PromptTokens(ids=labelled.ids[: places[-1] + 1], stops=[], places=places[:1])


def tokenise_solution(
    request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase
) -> PromptTokens:
    """Return the tokens of a row with steps, truncated as in training, and where its steps end.

    Raises:
        InvalidError: it is no row that could be trained on.
        TrainingError: the chat template cannot render it, or there is none.

    """
    row = _parse_row(request)
    chat_templates.set_chat_template(tokenizer, request.chat_template)
    ids, labels = rated_steps.tokenise_steps(row, chat_templates.load(tokenizer), tokenizer)
    ends = [place for place, label in enumerate(labels) if label != IGNORE_INDEX]
    size = request.max_length
    return PromptTokens(ids=ids[:size], stops=[], places=[end for end in ends if end < size])


def tokenise_tagged(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Return the tokens of a row with words, truncated as in training, and a token of each word.

    A word without a token of its own has that of the word before it.

    Raises:
        InvalidError: it is no row that could be trained on.

    """
    row = _parse_row(request)
    ids, numbers, _length = tagged_words.tokenise_words(
        row.text or "", row.words, tokenizer, request.max_length
    )
    found = tagged_words.find_places(numbers, is_first=request.is_encoder)
    places: list[int] = []
    for number in range(max(found, default=-1) + 1):
        places.append(found.get(number, places[-1] if places else min(found.values())))
    return PromptTokens(ids=ids, stops=[], places=places)


def tokenise_prompt(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Return the tokens of a row with `messages`, or with a `text` to continue.

    Raises:
        TrainingError: the chat template cannot render it, or there is none.

    """
    if "text" in request.row:
        return _tokenise_text(request.row["text"] + request.answer_start, tokenizer)
    if request.chat_template == "none":
        text = prompt_answer.prompt_text(request.row["messages"])
        spoken = _speak(request, tokenizer)
        ids = prompt_answer.prompt_ids(text, tokenizer, request.max_length)
        return PromptTokens(ids=ids, stops=[tokenizer.eos_token_id], spoken=spoken)
    chat_templates.set_chat_template(tokenizer, request.chat_template)
    template = chat_templates.load(tokenizer)
    messages = request.row["messages"]
    ids = _tokenise_started_answer(
        template.render_prompt(messages), request.answer_start, tokenizer
    )
    return PromptTokens(
        ids=repeat_images(ids, TrainingRow(messages=messages), tokenizer),
        stops=template.stop_tokens,
        template_hash=template.hash,
    )


def _tokenise_started_answer(
    prompt: str, start: str, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Return the tokens of a prompt as a model read them before it wrote the start of an answer."""

    def tokenise(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    ids = tokenise(prompt)
    # The answer's first letters may change the last token of the prompt, but hardly a line break.
    # Without any text before it, some tokenizers would add a space.
    for before in (prompt, "\n"):
        first, joined = tokenise(before), tokenise(before + start)
        if joined[: len(first)] == first:
            return ids + joined[len(first) :]
    return tokenise(prompt + start)


def _speak(request: TokenizerRequest, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Set the languages of a request, if it has any; return what `generate` is given."""
    if not request.target_language:
        return {}
    chosen = Languages(request.source_language, request.target_language)
    return languages.set_languages(tokenizer, chosen)


def _tokenise_text(text: str, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    ids = tokenizer(text)["input_ids"]
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids.pop()  # Some tokenizers end every text.
    return PromptTokens(ids=ids, stops=[tokenizer.eos_token_id])
