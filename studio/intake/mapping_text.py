"""A mapping in words: what it reads, and how it differs from another."""

from collections.abc import Iterator, Sequence

from studio.intake.column_roles import roles_for_shape
from studio.intake.detection.name_heuristics import join_names
from studio.intake.mapping import (
    Condition,
    FileOptions,
    FilterOp,
    Mapping,
    RowKind,
    ShapeName,
    Split,
)

SHAPE_LABELS: dict[ShapeName, str] = {
    "alpaca": "Instruction and answer (alpaca)",
    "prompt_completion": "Prompt and answer",
    "messages": "Conversations with role and content (OpenAI)",
    "sharegpt": "Conversations with from and value (sharegpt)",
    "preference": "A better and a worse answer",
    "ranked": "Several answers, ranked",
    "judged": "Answers judged good or bad (KTO)",
    "thread": "Messages that name the one before (threads)",
    "classification": "Text and class",
    "regression": "Text and number",
    "text": "Running text",
}
"""What each shape is called, most telling words first."""

OP_LABELS: dict[FilterOp, str] = {
    "is": "is",
    "is_not": "is not",
    "contains": "contains",
    "lacks": "does not contain",
    "longer_than": "is longer than",
    "shorter_than": "is shorter than",
}

_CONDITION_TEXTS: dict[FilterOp, str] = {
    "is": "{column} is exactly {value}",
    "is_not": "{column} is anything but {value}",
    "contains": "{column} contains {value}",
    "lacks": "{column} does not contain {value}",
    "longer_than": "{column} is longer than {value} characters",
    "shorter_than": "{column} is shorter than {value} characters",
}

TRAINED_ON: dict[RowKind, str] = {
    "conversation": "Supervised training learns the assistant's turns; the others are only read.",
    "text": "Supervised training learns every word of a text: to go on writing like it.",
    "preference": "Supervised training learns the better answer of each pair.",
    "judged": "Supervised training learns the answers judged good.",
}
"""What is learnt of rows of each kind."""

NOT_TRAINED_ON: dict[ShapeName, str] = {
    "preference": "The worse answers are not used: the model learns to write the better ones, and "
    "nothing about what makes an answer worse.",
    "ranked": "Only the best answer of each row is used. The other answers and the scores or ranks "
    "are not: the model learns nothing about what makes an answer worse.",
    "judged": "Answers judged bad are not used: the model learns to write the good ones, and "
    "nothing about what makes an answer bad.",
    "thread": "Every branch of a thread becomes a conversation of its own. Which of several "
    "replies was preferred is not used: all of them are learnt alike.",
    "regression": "Numbers are learnt as text: an answer that is nearly right counts as no "
    "better than one that is far off.",
}
"""What of the rows of a shape supervised training does not use, and what that means."""

DEDUPLICATE_LABELS: dict[str, str] = {
    "none": "Keep all rows",
    "exact": "Keep the first of equal rows",
    "question": "Keep the first row that asks the same",
}
MEDIA_LABELS: dict[str, str] = {
    "refuse": "Do not read a file that has any",
    "leave_out": "Leave these rows out",
    "ignore": "Read the text of these rows as if it were all",
}
_MAX_SHOWN = 10


def describe_mapping(mapping: Mapping) -> str:
    """Say which shape the rows have, and in which columns."""
    columns = [column for named in mapping.roles.values() for column in named]
    return f"{SHAPE_LABELS[mapping.shape]}: {_join_columns(columns)}"


def describe_changes(old: Mapping, new: Mapping) -> list[str]:
    """Say what a reading does otherwise than the one before, a sentence each."""
    return [
        *_file_changes(old.file, new.file),
        *_shape_changes(old, new),
        *_text_changes(old, new),
        *_value_changes(old, new),
        *_row_changes(old, new),
        *_excluded_changes(old.exclude, new.exclude),
    ]


def _file_changes(old: FileOptions, new: FileOptions) -> Iterator[str]:
    if old != new:
        chosen = new.model_dump(exclude_defaults=True)
        told = ", ".join(f"{name} {value}" for name, value in chosen.items())
        yield f"How the file is read: {told or 'detected'}."


def _shape_changes(old: Mapping, new: Mapping) -> Iterator[str]:
    if old.shape != new.shape:
        yield f"Read as: {describe_mapping(new)}."
        return
    for role in roles_for_shape(new.shape):
        before, after = old.roles.get(role.name, []), new.roles.get(role.name, [])
        if before != after:
            yield f"{role.label}: {_join_columns(after)} instead of {_join_columns(before)}."


def _text_changes(old: Mapping, new: Mapping) -> Iterator[str]:
    if old.joiner != new.joiner:
        yield f"Columns are joined by {_quote(new.joiner)} instead of {_quote(old.joiner)}."
    if old.system != new.system:
        yield f"System prompt: {_quote(new.system)}." if new.system else "No system prompt."


def _value_changes(old: Mapping, new: Mapping) -> Iterator[str]:
    for column in dict.fromkeys([*old.values, *new.values]):
        before, after = old.values.get(column, {}), new.values.get(column, {})
        changed = [
            raw for raw in dict.fromkeys([*before, *after]) if before.get(raw) != after.get(raw)
        ]
        for raw in changed[:_MAX_SHOWN]:
            yield f"In {column}, {raw} is written {_quote(after.get(raw, raw))}."
        if len(changed) > _MAX_SHOWN:
            yield f"In {column}, {len(changed) - _MAX_SHOWN} more are written otherwise."


def _row_changes(old: Mapping, new: Mapping) -> Iterator[str]:
    yield from (
        f"Only rows where {describe_condition(one)}." for one in new.keep if one not in old.keep
    )
    yield from (
        f"Also rows where not: {describe_condition(one)}."
        for one in old.keep
        if one not in new.keep
    )
    if old.media != new.media:
        yield f"Rows with images, audio, video or files: {MEDIA_LABELS[new.media]}."
    if old.deduplicate != new.deduplicate:
        yield f"{DEDUPLICATE_LABELS[new.deduplicate]}."
    if old.sample != new.sample:
        yield f"{new.sample:,} rows are drawn." if new.sample else "All rows, not a drawn part."
    if old.split != new.split:
        yield f"{describe_split(new.split)}."
    if old.seed != new.seed:
        yield f"Drawn with the seed {new.seed} instead of {old.seed}."


def describe_condition(one: Condition) -> str:
    """Say what a row must be like."""
    value = one.value if one.op in {"longer_than", "shorter_than"} else _quote(one.value)
    return _CONDITION_TEXTS[one.op].format(column=one.column, value=value)


def describe_split(one: Split) -> str:
    """Say which rows measure progress."""
    match one.kind:
        case "share":
            return f"{100 * one.share:g} % of the rows are held back to measure progress"
        case "column":
            return f"The column {one.column} says which rows measure progress"
        case "file":
            return "The names of the archive's files say which rows measure progress"
        case "dataset":
            return f"Progress is measured on {one.dataset or 'a file of its own'}"
    return "No rows are set aside here: each run holds back a share"


def _excluded_changes(old: Sequence[int], new: Sequence[int]) -> Iterator[str]:
    gone, back = sorted(set(new) - set(old)), sorted(set(old) - set(new))
    if gone:
        listed_rows = _join_numbers(gone)
        yield f"Rows {listed_rows} left out." if len(gone) > 1 else f"Row {listed_rows} left out."
    if back:
        listed_rows = _join_numbers(back)
        yield f"Rows {listed_rows} back in." if len(back) > 1 else f"Row {listed_rows} back in."


def _join_numbers(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _MAX_SHOWN:,} more" if len(rows) > _MAX_SHOWN else ""
    return ", ".join(map(str, rows[:_MAX_SHOWN])) + more


def _join_columns(columns: Sequence[str]) -> str:
    return join_names(columns) or "no column"


def _quote(text: str, length: int = 60) -> str:
    shown = text.replace("\n", "⏎")
    return f"“{shown[:length]}{'…' if len(shown) > length else ''}”"
