"""How the columns of a file become rows: the one description a person can see and change.

It is kept with every version of a data set: the same mapping of the same file gives the same rows.
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
"""What the rows of each shape become."""

MAX_COLUMN_NAME_CHARS = 1000
"""A column with a longer name, or none, cannot play a role."""

Column = Annotated[str, Len(1, MAX_COLUMN_NAME_CHARS)]
Separator = Literal["", ",", ";", "tab", "|", "^"]
FilterOp = Literal["is", "is_not", "contains", "lacks", "longer_than", "shorter_than"]


class _MappingModel(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Condition(_MappingModel):
    """What a row must be like to be kept. Case counts; values are compared as text."""

    column: Column
    op: FilterOp
    value: Annotated[str, Len(0, 10_000)]
    """A text; for longer_than and shorter_than a number of characters."""

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.op in {"longer_than", "shorter_than"} and not (
            self.value.isascii() and self.value.isdecimal() and len(self.value) < 16  # noqa: PLR2004 -- no text is longer
        ):
            message = "A length is a whole number of characters."
            raise ValueError(message)
        return self


class Split(_MappingModel):
    """Which rows are held back to measure progress."""

    kind: Literal["none", "share", "column", "file", "dataset"] = "none"
    """file: the names of an archive's files say which; without one for validation, test is held
    back. dataset: another file or data set, given beside the rows."""
    share: Annotated[float, Gt(0), Le(0.5)] = 0.05
    column: str = ""
    train: list[str] = ["train", "training"]
    """Values of the column that mean training, in any case."""
    validation: list[str] = ["validation", "valid", "val", "dev", "eval", "evaluation", "test"]
    """Values of the column that mean validation. Rows with any other value are left out."""
    dataset: str = ""
    """The name or id of a data set; nothing where a file was brought along."""


class FileOptions(_MappingModel):
    """How the file itself is read. What is left empty is detected."""

    encoding: str = ""
    """Of a text, as Python names it: gb18030, cp1252. Other spellings are understood."""
    sheet: Annotated[str, Len(0, 31)] = ""
    """Of an Excel workbook: the name of the sheet to read."""
    separator: Separator = ""
    """What stands between the cells of a table."""
    header: Literal["", "yes", "no"] = ""
    """Whether the first line of a table names its columns; without, they are numbered."""

    @field_validator("separator", mode="before")
    @classmethod
    def _name_tab(cls, written: object) -> object:
        return "tab" if written == "\t" else written

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, written: str) -> str:
        try:
            return normalise_encoding(written)
        except (LookupError, ValueError):
            known = ", ".join(ENCODINGS)
            message = f"There is no encoding called {written[:60]}. Known are: {known}."
            raise ValueError(message) from None


DETECT_ALL = FileOptions()
"""Nothing is chosen: all of it is detected."""


class Mapping(_MappingModel):
    """How the columns of a file become rows."""

    shape: ShapeName
    roles: dict[str, list[Column]]
    """The columns that play each role; `roles.roles_of` tells which roles a shape has."""
    joiner: Annotated[str, Len(0, 100)] = "\n\n"
    """What stands between the texts of several columns in one role."""
    system: Annotated[str, Len(0, 100_000)] = ""
    """A system prompt for rows that bring none."""
    values: dict[str, dict[str, str]] = {}
    """By column: what is to stand in place of a value. True and false are written so."""
    keep: list[Condition] = []
    """A row is kept if all of these hold."""
    sample: Annotated[int, Ge(1), Le(2**53)] | None = None
    """Keep only so many rows, drawn by the seed. Fewer are all kept."""
    media: Literal["refuse", "leave_out", "ignore"] = "refuse"
    """What to do with rows that hold images, audio, video or files: refuse the whole file, leave
    these rows out, or read their text as if it were all."""
    deduplicate: Literal["none", "exact", "question"] = "none"
    """Of rows that are equal, or ask the same, keep the first."""
    split: Split = Split()
    exclude: list[Annotated[int, Ge(1)]] = []
    """Numbers of rows to leave out, as the file counts them; an archive counts through its files
    in the order in which they are read."""
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 42
    file: FileOptions = DETECT_ALL

    @property
    def kind(self) -> RowKind:
        return KIND_BY_SHAPE[self.shape]

    @property
    def columns(self) -> list[str]:
        """Every column that is read, each once."""
        named = [column for columns in self.roles.values() for column in columns]
        named += [condition.column for condition in self.keep]
        named += [self.split.column] if self.split.kind == "column" else []
        return list(dict.fromkeys(named))
