"""Match columns to shapes by conventional names or by their values, using the first rows of a file.

Each role lists the names commonly used for it, likeliest first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from studio.intake.detection.column_types import (
    ColumnTable,
    holds_answer_lists,
    holds_message_lists,
    holds_rated_steps,
    holds_spans,
    holds_squad_answers,
    holds_tagged_lines,
    holds_tagged_words,
    is_boolean,
    is_indicator,
    is_label,
    is_label_list,
    is_numeric,
    is_text,
)
from studio.intake.mapping import ShapeName
from studio.intake.row_formats.threads import row_id

Sureness = Literal["sure", "likely", "guess"]

_PROMPTS = ("prompt", "question", "query", "input", "user", "source", "problem")
ANSWERS = ("completion", "response", "output", "answer", "assistant", "target", "solution")
_TURNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
_CONTEXTS = ("input", "context")
_TEXTS = ("text", "content", "document", "body", "article")
_CHOSEN = ("chosen", "preferred_output", "response_chosen", "chosen_response", "preferred")
_REJECTED = (
    "rejected",
    "non_preferred_output",
    "response_rejected",
    "rejected_response",
    "dispreferred",
)
ANSWER_LISTS = (
    "answers",
    "responses",
    "completions",
    "candidates",
    "outputs",
    "generations",
    *ANSWERS,
)
_SCORES = ("scores", "ratings", "rewards")
_RANKS = ("ranks", "ranking", "rank")
_STEPS = ("steps", "completions", "solution_steps", "reasoning_steps", "step_texts")
_STEP_VERDICTS = (
    *("labels", "verdicts", "correct", "is_correct", "step_labels", "step_ratings", "ratings"),
)
_WORDS = ("tokens", "words", "token", "word")
_TAGS = (
    *("ner_tags", "tags", "ner", "labels", "ner_labels", "bio_tags", "doc_bio_tags", "entities"),
    *("fine_ner_tags", "tag", "label", "chunk_tags", "pos_tags", "upos"),
)
_SPANS = ("entities", "spans", "ents", "label", "labels", "annotations", "ner", "entity_spans")
_VERDICTS = ("label", "kto_tag", "is_good", "desirable")
_IDS = ("id", "message_id", "row_id", "node_id")
_PARENTS = ("parent_id", "parent", "parent_message_id")
_SPEAKERS = ("role", "speaker", "author")
_LABELLED_TEXTS = (
    *_TEXTS,
    "sentence",
    "review",
    "comment",
    "tweet",
    "utterance",
    "title",
    "question",
)
_SENTENCE_PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"))
_LABELS = (
    "label",
    "labels",
    "class",
    "category",
    "sentiment",
    "intent",
    "topic",
    "label_text",
    "tags",
)
_MIN_INDICATORS = 2
"""Minimum number of columns of zeros and ones that count as labels."""
_NUMBERS = ("score", "rating", "label", "stars", "value", "target", "number", "similarity")
_SQUAD_QUESTION = (
    "If a question has several answers, the first is used; questions without an answer are left "
    "out. Is that right?"
)
TOOLS = ("tools", "functions")
KNOWN_COLUMN_NAMES = frozenset(
    {
        *("instruction", "system", "context", "history", "id", "split"),
        *(
            *_PROMPTS,
            *ANSWERS,
            *_TURNS,
            *_CONTEXTS,
            *_CHOSEN,
            *_REJECTED,
            *ANSWER_LISTS,
            *_SCORES,
        ),
        *(
            *_RANKS,
            *_VERDICTS,
            *_STEPS,
            *_STEP_VERDICTS,
            *_WORDS,
            *_TAGS,
            *_SPANS,
            *_IDS,
            *_PARENTS,
            *_SPEAKERS,
        ),
        *(*_LABELLED_TEXTS, *_LABELS, *_NUMBERS),
        *(*TOOLS, *(name for pair in _SENTENCE_PAIRS for name in pair)),
    }
)
"""All known names: a line with one of them is a header."""

RoleColumns = str | list[str] | None


@dataclass(frozen=True, slots=True)
class ShapeMatch:
    """A possible mapping of the rows, and the evidence for it."""

    shape: ShapeName
    roles: dict[str, list[str]]
    reason: str
    sureness: Sureness
    question: str = ""
    """What the user should check, as a sentence."""
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What values mean, by column."""


def match_by_names(table: ColumnTable) -> Iterator[ShapeMatch]:
    """Yield every match by column names, likeliest first."""
    yield from filter(None, (finder(table) for finder in _MATCHERS))


def join_names(names: Sequence[str]) -> str:
    """Join names for a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""


def _match_named(
    shape: ShapeName, convention: str, sureness: Sureness = "sure", **roles: RoleColumns
) -> ShapeMatch:
    columns = [name for role_columns in roles.values() for name in _as_list(role_columns)]
    reason = (
        f"Columns {join_names(columns)} match {convention}."
        if len(columns) > 1
        else f"Column {join_names(columns)} matches {convention}."
    )
    return build_match(shape, reason, sureness, **roles)


def build_match(
    shape: ShapeName, reason: str, sureness: Sureness, **roles: RoleColumns
) -> ShapeMatch:
    columns = {role: _as_list(names) for role, names in roles.items() if names is not None}
    return ShapeMatch(shape, columns, reason, sureness)


def _as_list(columns: RoleColumns) -> list[str]:
    return [columns] if isinstance(columns, str) else columns or []


def _prompt_columns(table: ColumnTable) -> list[str] | None:
    """Return the prompt columns: Alpaca's instruction and input, or one with another name."""
    instruction = table.find_column(["instruction"])
    if instruction is None:
        prompt = table.find_column(_PROMPTS)
        return None if prompt is None else [prompt]
    context = table.find_column(_CONTEXTS)
    return [instruction] if context is None else [instruction, context]


def _match_preference(table: ColumnTable) -> ShapeMatch | None:
    chosen, rejected = table.find_column(_CHOSEN), table.find_column(_REJECTED)
    if chosen is None or rejected is None:
        return None
    openai = chosen.strip().lower() == "preferred_output"
    prompt = (
        table.find_column(["input"])
        if openai
        else _prompt_columns(table) or table.find_column(_TURNS)
    )
    convention = "OpenAI's preference format" if openai else "a preference pair"
    return _match_named("preference", convention, prompt=prompt, chosen=chosen, rejected=rejected)


def _match_squad(table: ColumnTable) -> ShapeMatch | None:
    context, question = table.find_column(["context"]), table.find_column(["question"])
    answers = table.find_column(["answers"])
    if context is None or question is None or answers is None:
        return None
    if not holds_squad_answers(table.columns[answers]):
        return None
    match = _match_named(
        "prompt_completion",
        "the SQuAD format",
        "likely",
        context=context,
        prompt=question,
        completion=answers,
    )
    return replace(match, question=_SQUAD_QUESTION)


def _match_ranked(table: ColumnTable) -> ShapeMatch | None:
    prompt = _prompt_columns(table) or []
    lists = [
        name
        for name in ANSWER_LISTS
        if (column := table.find_column([name])) is not None
        and column not in prompt
        and holds_answer_lists(table.columns[column])
    ]
    if not prompt or not lists:
        return None
    answers = table.find_column(lists)
    scores, ranks = table.find_column(_SCORES), table.find_column(_RANKS)
    reason = f"Column {answers} holds a list of answers to each {prompt[0]}."
    sureness: Sureness = "likely" if scores is None and ranks is None else "sure"
    ranks = ranks if scores is None else None
    return build_match(
        "ranked", reason, sureness, prompt=prompt, answers=answers, scores=scores, ranks=ranks
    )


def _match_steps(table: ColumnTable) -> ShapeMatch | None:
    prompt = _prompt_columns(table)
    steps, verdicts = table.find_column(_STEPS), table.find_column(_STEP_VERDICTS)
    if prompt is None or steps is None or verdicts is None:
        return None
    if not holds_rated_steps(table, steps, verdicts):
        return None
    reason = f"Column {verdicts} says which steps in {steps} are right."
    return build_match("steps", reason, "sure", prompt=prompt, steps=steps, verdicts=verdicts)


def _match_words(table: ColumnTable) -> ShapeMatch | None:
    words = table.find_column(_WORDS)
    columns = [column for name in _TAGS if (column := table.find_column([name])) is not None]
    fitting = (column for column in columns if words and holds_tagged_words(table, words, column))
    tags = next(fitting, None)
    if words is None or tags is None:
        return None
    reason = f"Column {tags} holds a tag for each word in {words}."
    return build_match("words", reason, "sure", words=words, tags=tags)


def _match_spans(table: ColumnTable) -> ShapeMatch | None:
    text = next(iter(_labelled_text_columns(table)), None)
    columns = [column for name in _SPANS if (column := table.find_column([name])) is not None]
    spans = next((column for column in columns if holds_spans(table.columns[column])), None)
    if text is None or spans is None or spans == text:
        return None
    reason = f"Column {spans} says where in {text} entities start and end."
    return build_match("spans", reason, "sure", text=text, spans=spans)


def _match_lines(table: ColumnTable) -> ShapeMatch | None:
    text = table.find_column(_TEXTS)
    if text is None or not holds_tagged_lines(table.columns[text]):
        return None
    reason = f"Column {text} holds lines of a word and its tag, as in CoNLL's format."
    return build_match("lines", reason, "sure", lines=text)


def _match_judged(table: ColumnTable) -> ShapeMatch | None:
    label = table.find_column(_VERDICTS)
    if label is None or not is_boolean(table.columns[label]):
        return None
    reason = f"Column {label} rates each answer as good (true) or bad (false)."
    messages_match = _match_messages(table)
    if messages_match is not None:
        turns = messages_match.roles.get("messages") or messages_match.roles.get("conversations")
        return build_match("judged", reason, "sure", messages=turns, label=label)
    prompt, answer = _prompt_columns(table), table.find_column(ANSWERS)
    if prompt is None or answer is None:
        return None
    return build_match("judged", reason, "sure", prompt=prompt, completion=answer, label=label)


def _match_thread(table: ColumnTable) -> ShapeMatch | None:
    ids, parents = table.find_column(_IDS), table.find_column(_PARENTS)
    if ids is None or parents is None:
        return None
    roles = _thread_roles(table)
    known_ids = set(map(row_id, table.columns[ids]))
    inside = sum(row_id(value) in known_ids for value in table.columns[parents])
    if roles is None or not inside:
        return None
    reason = (
        f"{inside} of {len(table.columns[parents])} values of column {parents} are the {ids} "
        "of another row, so the rows form threads."
    )
    return build_match("thread", reason, "sure", id=ids, parent=parents, **roles)


def _thread_roles(table: ColumnTable) -> dict[str, str] | None:
    prompt, answer = table.find_column(("instruction", *_PROMPTS)), table.find_column(ANSWERS)
    if prompt is not None and answer is not None:
        return {"prompt": prompt, "answer": answer}
    text, speaker = table.find_column(_TEXTS), table.find_column(_SPEAKERS)
    if text is not None and speaker is not None:
        return {"text": text, "speaker": speaker}
    return None


def _match_messages(table: ColumnTable) -> ShapeMatch | None:
    conventional = [column for name in _TURNS if (column := table.find_column([name])) is not None]
    others = [column for column in table.columns if column not in conventional]
    tools = table.find_column(TOOLS)
    for column in (*conventional, *others):
        sureness: Sureness = "sure" if column in conventional else "likely"
        values = table.columns[column]
        if holds_message_lists(values, "role"):
            reason = f"Column {column} holds lists of turns with role and content."
            return build_match("messages", reason, sureness, messages=column, tools=tools)
        if holds_message_lists(values, "from", "value"):
            reason = f"Column {column} holds lists of turns with from and value."
            return build_match("sharegpt", reason, sureness, conversations=column, tools=tools)
    return None


def _match_alpaca(table: ColumnTable) -> ShapeMatch | None:
    output = table.find_column(ANSWERS)
    if table.find_column(["instruction"]) is None or output is None:
        return None
    return _match_named(
        "alpaca",
        "the Alpaca format",
        instruction=table.find_column(["instruction"]),
        input=table.find_column(_CONTEXTS),
        output=output,
        history=table.find_column(["history"]),
    )


def _match_prompt_completion(table: ColumnTable) -> ShapeMatch | None:
    prompt, answer = table.find_column(_PROMPTS), table.find_column(ANSWERS)
    if prompt is None or answer is None:
        return None
    return _match_named(
        "prompt_completion",
        "a question and an answer",
        context=table.find_column(["context"]),
        prompt=prompt,
        completion=answer,
        tools=table.find_column(TOOLS),
    )


def _labelled_text_columns(table: ColumnTable) -> list[str]:
    for pair in _SENTENCE_PAIRS:
        columns = [column for name in pair if (column := table.find_column([name])) is not None]
        if len(columns) == len(pair):
            return columns
    candidates = [
        column for name in _LABELLED_TEXTS if (column := table.find_column([name])) is not None
    ]
    return [column for column in candidates if is_text(table.columns[column])][:1]


def _match_classification(table: ColumnTable) -> ShapeMatch | None:
    texts, label = _labelled_text_columns(table), table.find_column(_LABELS)
    if label is None:
        return _match_indicators(table, texts)
    if not texts or label in texts:
        return None
    if is_label_list(table.columns[label]):
        reason = f"Column {label} holds lists of labels for {join_names(texts)}."
        return ShapeMatch("classification", {"text": texts, "label": [label]}, reason, "sure")
    if not is_label(table.columns[label]):
        return None
    different = len({str(value) for value in table.columns[label]})
    reason = f"Column {label} has {different} distinct values: labels for {join_names(texts)}."
    return ShapeMatch("classification", {"text": texts, "label": [label]}, reason, "sure")


def _match_indicators(table: ColumnTable, texts: list[str]) -> ShapeMatch | None:
    """Match one column of zeros and ones per label, as in data for several labels per text."""
    labels = [name for name, values in table.columns.items() if is_indicator(values)]
    if not texts or len(labels) < _MIN_INDICATORS:
        return None
    reason = f"Columns {join_names(labels)} are each 0 or 1: a label that each text has or has not."
    return ShapeMatch("classification", {"text": texts, "label": labels}, reason, "likely")


def _match_regression(table: ColumnTable) -> ShapeMatch | None:
    texts, number = _labelled_text_columns(table), table.find_column(_NUMBERS)
    if not texts or number is None or number in texts or not is_numeric(table.columns[number]):
        return None
    reason = f"Column {number} holds a number for each {join_names(texts)}."
    return ShapeMatch("regression", {"text": texts, "number": [number]}, reason, "likely")


def _match_text(table: ColumnTable) -> ShapeMatch | None:
    text = table.find_column(_TEXTS)
    if text is None or not is_text(table.columns[text]):
        return None
    alone = len(table.text_columns()) == 1
    return _match_named("text", "plain text", "sure" if alone else "likely", text=text)


_MATCHERS: tuple[Callable[[ColumnTable], ShapeMatch | None], ...] = (
    _match_preference,
    _match_squad,
    _match_words,
    _match_spans,
    _match_lines,
    _match_steps,
    _match_ranked,
    _match_judged,
    _match_thread,
    _match_messages,
    _match_alpaca,
    _match_prompt_completion,
    _match_classification,
    _match_regression,
    _match_text,
)


_MIN_LABEL_ROWS, _MAX_LABEL_VALUES = 20, 10
"""Minimum number of rows, and maximum number of distinct values, for a label column."""
_MAX_CLASS_WORDS = 3
"""Maximum number of words in a class."""


def match_by_values(table: ColumnTable) -> Iterator[ShapeMatch]:
    """Yield every match by column values, likeliest first."""
    yield from filter(None, (finder(table) for finder in _VALUE_MATCHERS))


def _match_label_values(table: ColumnTable) -> ShapeMatch | None:
    """Guess a label column by its values: few words, in many rows."""
    # Canned answers repeat like labels, but are sentences.
    texts = [name for name in table.text_columns() if not _is_class(table.columns[name])]
    labels = [
        name
        for name, values in table.columns.items()
        if name not in texts
        and len(values) >= _MIN_LABEL_ROWS
        and 1 < len(set(map(str, values))) <= _MAX_LABEL_VALUES
        and is_label(values)
    ]
    # A number may count anything, so it is a label only if no text column is one.
    labels = [name for name in labels if not is_numeric(table.columns[name])] or labels
    if len(texts) != 1 or len(labels) != 1:
        return None
    reason = f"Column {labels[0]} has few distinct values, which may be labels for {texts[0]}."
    return build_match("classification", reason, "guess", text=texts[0], label=labels[0])


def _is_class(values: Sequence[Any]) -> bool:
    return is_label(values) and max(len(str(value).split()) for value in values) <= _MAX_CLASS_WORDS


def _match_two_texts(table: ColumnTable) -> ShapeMatch | None:
    texts = table.text_columns()
    if len(texts) < 2:  # noqa: PLR2004 -- a question and an answer
        return None
    prompt, *others = texts
    answer = max(others, key=lambda name: sum(map(len, map(str, table.columns[name]))))
    reason = f"Columns {prompt} and {answer} hold text; the first one may be the question."
    return build_match("prompt_completion", reason, "guess", prompt=prompt, completion=answer)


def _match_only_text(table: ColumnTable) -> ShapeMatch | None:
    texts = table.text_columns()
    if len(texts) != 1:
        return None
    reason = f"Column {texts[0]} is the only text column."
    return build_match("text", reason, "guess", text=texts[0])


_VALUE_MATCHERS: tuple[Callable[[ColumnTable], ShapeMatch | None], ...] = (
    _match_label_values,
    _match_two_texts,
    _match_only_text,
)
