"""The mapping of a file's columns to rows, which users can view and edit.

It is stored with every version of a dataset: the same mapping of the same file gives the same rows.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le, Len
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from studio.errors import InvalidError
from studio.intake.files.encodings import ENCODINGS, normalise_encoding
from studio.schemas.field_docs import FieldDocs

ShapeName = Literal[
    "alpaca",
    "prompt_completion",
    "messages",
    "sharegpt",
    "preference",
    "ranked",
    "judged",
    "thread",
    "classification",
    "regression",
    "text",
]
RowKind = Literal["conversation", "text", "preference", "judged"]

KIND_BY_SHAPE: dict[ShapeName, RowKind] = {
    "alpaca": "conversation",
    "prompt_completion": "conversation",
    "messages": "conversation",
    "sharegpt": "conversation",
    "preference": "preference",
    "ranked": "preference",
    "judged": "judged",
    "thread": "conversation",
    "classification": "conversation",
    "regression": "conversation",
    "text": "text",
}
"""The kind of row that each shape becomes."""

MAX_COLUMN_NAME_CHARS = 1000
"""A column with a longer or empty name cannot play a role."""

Column = Annotated[str, Len(1, MAX_COLUMN_NAME_CHARS)]
Separator = Literal["", ",", ";", "tab", "|", "^"]
FilterOp = Literal["is", "is_not", "contains", "lacks", "longer_than", "shorter_than"]


class _MappingModel(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Condition(_MappingModel):
    """Condition that a row must meet to be kept. Case-sensitive; values are compared as text."""

    column: Column
    op: FilterOp
    value: Annotated[str, Len(0, 10_000)]
    """The text to compare with; for longer_than and shorter_than, a number of characters."""

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.op in {"longer_than", "shorter_than"} and not (
            self.value.isascii() and self.value.isdecimal() and len(self.value) < 16  # noqa: PLR2004 -- no text is longer
        ):
            message = "Enter the length as a whole number of characters."
            raise ValueError(message)
        return self


class Split(_MappingModel):
    """Which rows are held out for validation."""

    kind: Literal["none", "share", "column", "file", "dataset"] = "none"
    """file: by the file names in an archive; without a validation file, test is held out. dataset:
    another file or dataset, given with the rows."""
    share: Annotated[float, Gt(0), Le(0.5)] = 0.05
    column: str = ""
    train: list[str] = ["train", "training"]
    """Values of the column that mean training. Case-insensitive."""
    validation: list[str] = ["validation", "valid", "val", "dev", "eval", "evaluation", "test"]
    """Values of the column that mean validation. Rows with other values are left out."""
    dataset: str = ""
    """The name or id of a dataset; empty if a file was uploaded."""


class FileOptions(_MappingModel):
    """How to read the file itself. Empty options are detected."""

    encoding: str = ""
    """Of a text file, by its Python name: gb18030, cp1252. Aliases are accepted."""
    sheet: Annotated[str, Len(0, 31)] = ""
    """Of an Excel workbook: the name of the sheet to read."""
    separator: Separator = ""
    """The separator between the cells of a table."""
    header: Literal["", "yes", "no"] = ""
    """Whether the first line of a table holds column names; if not, columns are numbered."""

    @field_validator("separator", mode="before")
    @classmethod
    def _name_tab(cls, separator: object) -> object:
        return "tab" if separator == "\t" else separator

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, name: str) -> str:
        try:
            return normalise_encoding(name)
        except (LookupError, ValueError):
            supported = ", ".join(ENCODINGS)
            message = f"Unknown encoding: {name[:60]}. Supported encodings: {supported}."
            raise ValueError(message) from None


DETECT_ALL = FileOptions()
"""No option is set: all are detected."""


class Mapping(_MappingModel):
    """How the columns of a file become rows."""

    shape: ShapeName
    roles: dict[str, list[Column]]
    """The columns that play each role; `roles_for_shape` lists the roles of a shape."""
    joiner: Annotated[str, Len(0, 100)] = "\n\n"
    """Text inserted between the texts of several columns in one role."""
    system: Annotated[str, Len(0, 100_000)] = ""
    """A system prompt for rows without one."""
    values: dict[str, dict[str, str]] = {}
    """Replacements for values, by column. Booleans are written true and false."""
    keep: list[Condition] = []
    """A row is kept if it meets all of these conditions."""
    sample: Annotated[int, Ge(1), Le(2**53)] | None = None
    """Keep only this many rows, sampled with the seed. Fewer are all kept."""
    media: Literal["refuse", "leave_out", "ignore"] = "refuse"
    """What to do with rows that hold images, audio, video or files: refuse the whole file, leave
    these rows out, or ignore the media and use the text."""
    deduplicate: Literal["none", "exact", "question"] = "none"
    """Of rows that are identical, or ask the same question, keep the first."""
    split: Split = Split()
    exclude: list[Annotated[int, Ge(1)]] = []
    """Numbers of rows to leave out, counted as in the file; in an archive, counted across its files
    in reading order."""
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 42
    file: FileOptions = DETECT_ALL

    @property
    def kind(self) -> RowKind:
        return KIND_BY_SHAPE[self.shape]

    @property
    def columns(self) -> list[str]:
        """Every column that is read, without duplicates."""
        used = [column for columns in self.roles.values() for column in columns]
        used += [condition.column for condition in self.keep]
        used += [self.split.column] if self.split.kind == "column" else []
        return list(dict.fromkeys(used))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRole:
    """A role that a column can play."""

    name: str
    label: str
    required: bool
    """Whether the rows are unusable without it."""
    allows_several: bool
    """Whether several columns can play it; their texts are joined."""


_ROLE_LABELS = {
    "system": "System prompt",
    "instruction": "Instruction",
    "input": "Input",
    "output": "Answer",
    "history": "Conversation history",
    "context": "Context",
    "prompt": "Prompt",
    "completion": "Answer",
    "messages": "Turns",
    "conversations": "Turns",
    "tools": "Tools",
    "chosen": "Preferred answer",
    "rejected": "Rejected answer",
    "answers": "List of answers",
    "scores": "Scores (highest is best)",
    "ranks": "Ranks (lowest is best)",
    "label": "Label",
    "id": "Row id",
    "parent": "Parent row id",
    "answer": "Answer",
    "speaker": "Speaker",
    "text": "Text",
    "number": "Number",
}
_MULTI_COLUMN_ROLES = frozenset(
    {"system", "instruction", "input", "output", "context", "completion", "answer", "text"}
)
_MULTI_COLUMN_PROMPTS = frozenset({"prompt_completion", "preference", "ranked", "judged", "thread"})
"""Shapes whose prompt may consist of several columns."""

_SHAPE_ROLES: dict[ShapeName, tuple[str, ...]] = {
    "alpaca": ("instruction", "input", "output", "history", "system"),
    "prompt_completion": ("prompt", "completion", "context", "system", "tools"),
    "messages": ("messages", "tools", "system"),
    "sharegpt": ("conversations", "tools", "system"),
    "preference": ("prompt", "chosen", "rejected", "tools", "system"),
    "ranked": ("prompt", "answers", "scores", "ranks", "system"),
    "judged": ("messages", "prompt", "completion", "label", "tools", "system"),
    "thread": ("id", "parent", "prompt", "answer", "text", "speaker", "system"),
    "classification": ("text", "label", "system"),
    "regression": ("text", "number", "system"),
    "text": ("text",),
}
_REQUIRED_ROLES: dict[ShapeName, tuple[frozenset[str], ...]] = {
    "alpaca": (frozenset({"instruction", "output"}),),
    "prompt_completion": (frozenset({"prompt", "completion"}),),
    "messages": (frozenset({"messages"}),),
    "sharegpt": (frozenset({"conversations"}),),
    "preference": (frozenset({"chosen", "rejected"}),),
    "ranked": (frozenset({"prompt", "answers"}),),
    "judged": (frozenset({"label", "messages"}), frozenset({"label", "prompt", "completion"})),
    "thread": (
        frozenset({"id", "parent", "prompt", "answer"}),
        frozenset({"id", "parent", "text", "speaker"}),
    ),
    "classification": (frozenset({"text", "label"}),),
    "regression": (frozenset({"text", "number"}),),
    "text": (frozenset({"text"}),),
}
"""Sets of required roles; any one set is enough."""


def roles_for_shape(shape: ShapeName) -> tuple[ColumnRole, ...]:
    """Return the roles of a shape, in display order."""
    needed = _REQUIRED_ROLES[shape]
    return tuple(
        ColumnRole(
            name=name,
            label=_ROLE_LABELS[name],
            required=all(name in roles for roles in needed),
            allows_several=name in _MULTI_COLUMN_ROLES
            or (name == "prompt" and shape in _MULTI_COLUMN_PROMPTS),
        )
        for name in _SHAPE_ROLES[shape]
    )


def check_mapping(mapping: Mapping, columns: Collection[str]) -> None:
    """Check a mapping against the columns of a file.

    Raises:
        InvalidError: the mapping cannot be applied; `param` is the dotted name of the wrong field.

    """
    _check_roles(mapping)
    for role, role_columns in mapping.roles.items():
        for column in role_columns:
            _check_column(column, columns, f"roles.{role}")
    for i, condition in enumerate(mapping.keep):
        _check_column(condition.column, columns, f"keep.{i}.column")
    for column in mapping.values:
        _check_column(column, columns, f"values.{column}")
    if mapping.split.kind == "column":
        _check_column(mapping.split.column, columns, "split.column")


def _check_roles(mapping: Mapping) -> None:
    roles_by_name = {role.name: role for role in roles_for_shape(mapping.shape)}
    for name, columns in mapping.roles.items():
        if name not in roles_by_name:
            raise InvalidError(
                f"The format {mapping.shape} has no role named {name}.",
                hint=f"Available roles: {', '.join(roles_by_name)}.",
                param=f"roles.{name}",
            )
        if len(columns) > 1 and not roles_by_name[name].allows_several:
            raise InvalidError(
                f"Choose only one column for: {roles_by_name[name].label.lower()}.",
                hint="Remove the other columns.",
                param=f"roles.{name}",
            )
    _check_required(mapping)


def is_complete(mapping: Mapping) -> bool:
    """Tell whether every required role has a column."""
    return not _missing_roles(mapping)


def _missing_roles(mapping: Mapping) -> list[str]:
    filled = {name for name, columns in mapping.roles.items() if columns}
    alternatives = _REQUIRED_ROLES[mapping.shape]
    nearest = min(alternatives, key=lambda needed: (len(needed - filled), -len(needed & filled)))
    return [name for name in _SHAPE_ROLES[mapping.shape] if name in nearest - filled]


def _check_required(mapping: Mapping) -> None:
    missing = next(iter(_missing_roles(mapping)), None)
    if missing is None:
        return
    raise InvalidError(
        f"No column selected for: {_ROLE_LABELS[missing].lower()}.",
        hint="Select a column for it, or choose another format.",
        param=f"roles.{missing}",
    )


def _check_column(column: str, columns: Collection[str], param: str) -> None:
    if column not in columns:
        shown = ", ".join(name[:60] for name in list(columns)[:12])
        raise InvalidError(
            f"Column not found: {column[:100]}." if column else "No column selected.",
            hint=f"Available columns: {shown}.",
            param=param,
        )
