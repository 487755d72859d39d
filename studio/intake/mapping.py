"""The mapping of a file's columns to rows, which users can view and edit.

It is stored with every version of a dataset: the same mapping of the same file gives the same rows.
"""

from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le, Len
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

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
    "steps",
    "words",
    "spans",
    "lines",
    "task",
    "pairs",
    "text",
]
RowKind = Literal[
    "conversation",
    "text",
    "preference",
    "judged",
    "steps",
    "tokens",
    "task",
    "pairs",
    "images",
]

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
    "steps": "steps",
    "words": "tokens",
    "spans": "tokens",
    "lines": "tokens",
    "task": "task",
    "pairs": "pairs",
    "text": "text",
}
"""The kind of row that each shape becomes, without its images."""

IMAGE_SHAPES: frozenset[ShapeName] = frozenset(
    {"alpaca", "prompt_completion", "messages", "sharegpt"}
)
"""The shapes whose images can be used; with them, the rows are of the kind `images`."""

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
    """The columns that play each role; `column_roles.roles_for_shape` lists the roles of a
    shape."""
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
    media: Literal["refuse", "use", "leave_out", "ignore"] = "refuse"
    """What to do with rows that hold images, audio, video or files: refuse the whole file, use the
    images, leave these rows out, or ignore the media and use the text."""
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
        return "images" if self.media == "use" else KIND_BY_SHAPE[self.shape]

    @property
    def columns(self) -> list[str]:
        """Every column that is read, without duplicates."""
        used = [column for columns in self.roles.values() for column in columns]
        used += [condition.column for condition in self.keep]
        used += [self.split.column] if self.split.kind == "column" else []
        return list(dict.fromkeys(used))
