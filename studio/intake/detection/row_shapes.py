"""Detect the shape of a file's first rows: an initial mapping, and how confident it is.

The evidence is given in sentences, so that the user can confirm or change the mapping.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Values
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from studio.errors import InvalidError
from studio.intake.column_roles import roles_for_shape
from studio.intake.detection.column_types import ColumnTable, build_table
from studio.intake.detection.name_heuristics import (
    ShapeMatch,
    Sureness,
    match_by_names,
    match_by_values,
)
from studio.intake.detection.pair_columns import match_queries, match_two_texts
from studio.intake.detection.task_heuristics import match_prompts, match_turns
from studio.intake.files.encodings import EncodingPreview
from studio.intake.mapping import Mapping, RowKind, Split
from studio.intake.raw_rows import RawRow
from studio.intake.row_formats.message_formats import to_text, unused_keys
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import UnusableRowError
from studio.intake.row_formats.threads import ThreadJoiner

_MAX_ALTERNATIVES = 4
_SURE_SHARE, _LIKELY_SHARE = 0.9, 0.5
"""Minimum share of usable rows for each confidence."""
_VALUES_QUESTION = (
    "The column names do not show their roles. Is the right column selected for each role?"
)
_IMAGE_KEYS = ("images", "image")
"""Keys of turns that hold their images."""
_SPLIT_COLUMN_NAMES = ("split", "partition", "dataset_split")

KIND_NAMES: dict[str, str] = {
    "conversation": "conversations",
    "text": "texts",
    "preference": "preferences",
    "judged": "rated answers",
    "steps": "solutions with rated steps",
    "tokens": "texts with tagged words",
    "task": "tasks without answers",
    "pairs": "pairs of texts",
    "images": "conversations with images",
}


class UnrecognisedError(InvalidError):
    """The rows can be read, but their columns are not recognised. The user may know them."""


EXPECTED_COLUMNS = (
    "instruction and output (input is optional); prompt and completion, or question and "
    "answer; messages with role and content; conversations with from and value; chosen and "
    "rejected; text and label; tokens and ner_tags; text and entities; anchor and positive; "
    "a prompt without an answer; "
    "or text alone"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedMapping:
    """The mapping detected from the first rows."""

    mapping: Mapping
    kind: RowKind
    sureness: Sureness
    evidence: list[str]
    """Evidence, as sentences."""
    alternatives: list[Mapping]
    """Other mappings that fit some of the rows, likeliest first."""
    unused: list[str]
    """Columns without a role, and unused keys of turns."""
    questions: list[str] = field(default_factory=list)
    """What the user should check before using the rows, as sentences."""
    encodings: list[EncodingPreview] = field(default_factory=list)
    """For text that is not UTF-8: samples in the chosen encoding and in others."""
    sheets: list[str] = field(default_factory=list)
    """For an Excel workbook: the names of its sheets."""
    media_rows: int = 0
    """Number of sampled rows that hold images, audio, video or files."""


@dataclass(frozen=True, slots=True)
class _TriedMatch:
    match: ShapeMatch
    mapping: Mapping
    usable: int


def detect_mapping(rows: Iterable[Values[str, Any]]) -> DetectedMapping:
    """Detect the mapping of rows from the first of them.

    Raises:
        UnrecognisedError: no column can be trained on.

    """
    table = build_table(rows)
    split = _detect_split(table)
    named = list(match_by_names(table))
    found = chain(
        match_turns(table, named),
        match_queries(table),
        named,
        match_two_texts(table),
        match_prompts(table, named),
        match_by_values(table),
    )
    tried = [_try_match(table, match, split) for match in found]
    if not tried:
        raise _no_column_error(list(table.columns))
    best, *others = sorted(tried, key=lambda one: _doubt_rank(one, len(table.rows)))
    return DetectedMapping(
        mapping=best.mapping,
        kind=best.mapping.kind,
        sureness=_sureness(best, len(table.rows)),
        evidence=_evidence(best, len(table.rows)),
        alternatives=_alternatives(best, others),
        unused=find_unused_columns(table, best.mapping),
        questions=[
            question for question in (_values_question(best), best.match.question) if question
        ],
    )


def _values_question(best: _TriedMatch) -> str:
    return _VALUES_QUESTION if best.match.sureness == "guess" else ""


def find_unused_columns(table: ColumnTable, mapping: Mapping) -> list[str]:
    """Return the columns that a mapping does not use, and keys of turns as `messages.key`."""
    columns = [name for name in table.columns if name not in mapping.columns]
    # Graders may read all of a value.
    turns = [name for name in mapping.columns if name not in mapping.roles.get("item", ())]
    used = (name for name in turns if name in table.columns)
    keys = {name: unused_keys(table.columns[name]) for name in used}
    ignored = _IMAGE_KEYS if mapping.media == "use" else ()
    return columns + [f"{name}.{key}" for name in keys for key in keys[name] if key not in ignored]


def count_usable_rows(mapping: Mapping, rows: Sequence[Values[str, Any]]) -> int:
    """Return how many of the rows can be trained on."""
    if mapping.shape == "thread":
        return _count_in_threads(mapping, rows)
    return sum(1 for row in rows if _is_usable(mapping, row))


def _is_usable(mapping: Mapping, row: Values[str, Any]) -> bool:
    try:
        build_row(mapping, row)
    except UnusableRowError:
        return False
    return True


def _count_in_threads(mapping: Mapping, rows: Sequence[Values[str, Any]]) -> int:
    threads = ThreadJoiner(mapping)
    for number, values in enumerate(rows, 1):
        try:
            threads.add(RawRow(number, dict(values)))
        except UnusableRowError:
            continue
    complete = (thread.rows for thread in threads if not isinstance(thread.row, UnusableRowError))
    return len({number for numbers in complete for number in numbers})


def _try_match(table: ColumnTable, match: ShapeMatch, split: Split) -> _TriedMatch:
    system = table.find_column(["system", "system_prompt"])
    used = {column for columns in match.roles.values() for column in columns}
    has_system = any(role.name == "system" for role in roles_for_shape(match.shape))
    with_system = system is not None and system not in used and has_system
    roles = ({"system": [str(system)]} if with_system else {}) | match.roles
    if match.shape == "task" and (others := _other_columns(table, roles, split)):
        roles["item"] = others
    values = {column: dict(meant) for column, meant in match.values.items()}
    mapping = Mapping(shape=match.shape, roles=roles, values=values, split=split)
    return _TriedMatch(match, mapping, count_usable_rows(mapping, table.rows))


def _other_columns(table: ColumnTable, roles: Values[str, list[str]], split: Split) -> list[str]:
    """Return the columns that graders of a task may read: those that are not part of the prompt."""
    used = {split.column, *chain.from_iterable(roles.values())}
    return [column for column in table.columns if column not in used]


def _detect_split(table: ColumnTable) -> Split:
    """Return the split that a column defines, if one does."""
    column = table.find_column(_SPLIT_COLUMN_NAMES)
    default = Split()
    if column is None:
        return default
    present = {to_text(value).strip().lower() for value in table.columns[column]}
    if not present or not present <= {*default.train, *default.validation}:
        return default
    return Split(kind="column", column=column)


def _doubt_rank(candidate: _TriedMatch, rows: int) -> tuple[bool, bool]:
    """Rank name matches before guesses, and matches that can use most rows before others."""
    return candidate.match.sureness == "guess", candidate.usable < _LIKELY_SHARE * rows


def _sureness(best: _TriedMatch, rows: int) -> Sureness:
    if best.match.sureness == "guess" or best.usable < _LIKELY_SHARE * rows:
        return "guess"
    return best.match.sureness if best.usable >= _SURE_SHARE * rows else "likely"


def _evidence(best: _TriedMatch, rows: int) -> list[str]:
    become = KIND_NAMES[best.mapping.kind]
    usable_rows = f"{best.usable:,} of {rows:,} sampled rows are usable as {become}."
    split = best.mapping.split
    split_note = f"Column {split.column} marks rows for training and for validation."
    return [best.match.reason, usable_rows, *([split_note] if split.kind == "column" else [])]


def _alternatives(best: _TriedMatch, others: Iterable[_TriedMatch]) -> list[Mapping]:
    distinct: list[Mapping] = []
    is_sure = best.match.sureness == "sure"
    for candidate in others:
        if is_sure and candidate.match.sureness == "guess":
            continue
        if candidate.usable and candidate.mapping not in (best.mapping, *distinct):
            distinct.append(candidate.mapping)
    return distinct[:_MAX_ALTERNATIVES]


def _no_column_error(columns: list[str]) -> UnrecognisedError:
    return UnrecognisedError(
        f"No column can be trained on. The file has {_describe_columns(columns)}.",
        hint=f"Expected: {EXPECTED_COLUMNS}.",
        param="file",
    )


def _describe_columns(columns: list[str], limit: int = 12, length: int = 60) -> str:
    more = f" and {len(columns) - limit} more" if len(columns) > limit else ""
    names = ", ".join(name[:length] for name in columns[:limit]) + more
    if not columns:
        return "no columns"
    return f"the columns {names}" if len(columns) > 1 else f"the column {names}"
