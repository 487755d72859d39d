"""Describe a mapping in words, and how it differs from another."""

from collections.abc import Iterator, Sequence

from studio.intake.column_roles import roles_for_shape
from studio.intake.detection.name_heuristics import join_names
from studio.intake.mapping import Condition, FileOptions, FilterOp, Mapping, ShapeName, Split

SHAPE_LABELS: dict[ShapeName, str] = {
    "alpaca": "Instruction and answer (Alpaca)",
    "prompt_completion": "Prompt and answer",
    "messages": "Conversations with role and content (OpenAI)",
    "sharegpt": "Conversations with from and value (ShareGPT)",
    "preference": "Preferred and rejected answer",
    "ranked": "Several answers, ranked",
    "judged": "Answers rated good or bad (KTO)",
    "thread": "Messages with a parent id (threads)",
    "classification": "Text and label",
    "regression": "Text and number",
    "steps": "Steps of a solution, each right or wrong",
    "words": "Words with their tags (BIO)",
    "spans": "Text with marked entities (spans)",
    "lines": "A word and its tag on each line (CoNLL)",
    "task": "Prompts without answers, for graders (tasks)",
    "pairs": "Texts that belong together (pairs)",
    "text": "Plain text",
}
"""The label of each shape, most informative words first."""

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
    "is_not": "{column} differs from {value}",
    "contains": "{column} contains {value}",
    "lacks": "{column} does not contain {value}",
    "longer_than": "{column} is longer than {value} characters",
    "shorter_than": "{column} is shorter than {value} characters",
}

DEDUPLICATE_LABELS: dict[str, str] = {
    "none": "Keep all rows",
    "exact": "Keep the first of identical rows",
    "question": "Keep the first row per question",
}
MEDIA_LABELS: dict[str, str] = {
    "refuse": "Reject the file if it has any",
    "use": "Use their images",
    "leave_out": "Exclude these rows",
    "ignore": "Use only the text of these rows",
}
_MAX_SHOWN = 10


def describe_mapping(mapping: Mapping) -> str:
    """Describe a mapping's shape and the columns it uses."""
    columns = [column for role_columns in mapping.roles.values() for column in role_columns]
    return f"{SHAPE_LABELS[mapping.shape]}: {_join_columns(columns)}"


def describe_changes(old: Mapping, new: Mapping) -> list[str]:
    """Describe each change from the old mapping to the new one in a sentence."""
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
        options = new.model_dump(exclude_defaults=True)
        listed = ", ".join(f"{name} {value}" for name, value in options.items())
        yield f"File reading options: {listed or 'detected'}."


def _shape_changes(old: Mapping, new: Mapping) -> Iterator[str]:
    if old.shape != new.shape:
        yield f"Mapped as: {describe_mapping(new)}."
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
            yield f"In {column}, {raw} is replaced with {_quote(after.get(raw, raw))}."
        if len(changed) > _MAX_SHOWN:
            yield f"In {column}, {len(changed) - _MAX_SHOWN} more values are replaced."


def _row_changes(old: Mapping, new: Mapping) -> Iterator[str]:
    yield from (
        f"Only rows where {describe_condition(condition)}."
        for condition in new.keep
        if condition not in old.keep
    )
    yield from (
        f"Filter removed: {describe_condition(condition)}."
        for condition in old.keep
        if condition not in new.keep
    )
    if old.media != new.media:
        yield f"Rows with images, audio, video or files: {MEDIA_LABELS[new.media]}."
    if old.deduplicate != new.deduplicate:
        yield f"{DEDUPLICATE_LABELS[new.deduplicate]}."
    if old.sample != new.sample:
        yield _describe_sample(new.sample)
    if old.split != new.split:
        yield f"{describe_split(new.split)}."
    if old.seed != new.seed:
        yield f"Sampled with seed {new.seed} instead of {old.seed}."


def describe_condition(condition: Condition) -> str:
    """Describe the condition a row must meet."""
    value = (
        condition.value
        if condition.op in {"longer_than", "shorter_than"}
        else _quote(condition.value)
    )
    return _CONDITION_TEXTS[condition.op].format(column=condition.column, value=value)


def _describe_sample(rows: int | None) -> str:
    if not rows:
        return "All rows, without sampling."
    return "1 row is sampled." if rows == 1 else f"{rows:,} rows are sampled."


def describe_split(split: Split) -> str:
    """Describe which rows are for validation."""
    match split.kind:
        case "share":
            return f"{100 * split.share:g} % of the rows are held out for validation"
        case "column":
            return f"The column {split.column} marks the validation rows"
        case "file":
            return "File names in the archive mark the validation rows"
        case "dataset":
            return f"Validation uses {split.dataset or 'a separate file'}"
    return "No validation rows here: each run holds out a share"


def _excluded_changes(old: Sequence[int], new: Sequence[int]) -> Iterator[str]:
    added, removed = sorted(set(new) - set(old)), sorted(set(old) - set(new))
    if added:
        listed_rows = _join_numbers(added)
        yield f"Rows {listed_rows} excluded." if len(added) > 1 else f"Row {listed_rows} excluded."
    if removed:
        listed_rows = _join_numbers(removed)
        yield (
            f"Rows {listed_rows} included again."
            if len(removed) > 1
            else f"Row {listed_rows} included again."
        )


def _join_numbers(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _MAX_SHOWN:,} more" if len(rows) > _MAX_SHOWN else ""
    return ", ".join(map(str, rows[:_MAX_SHOWN])) + more


def _join_columns(columns: Sequence[str]) -> str:
    return join_names(columns) or "no column"


def _quote(text: str, length: int = 60) -> str:
    line = text.replace("\n", "⏎")
    return f"“{line[:length]}{'…' if len(line) > length else ''}”"
