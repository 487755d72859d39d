"""The names of a table's columns, each made its own: a row has one value by a name."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from studio.intake.files.limits import check_column_count
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote


@dataclass(frozen=True, slots=True)
class ColumnNames:
    unique: list[str]
    """One for each column, in order."""
    renamed: list[str]
    """Those of them that are not in the file."""

    def notes(self) -> Iterator[FileNote]:
        """Say so, if names were made up."""
        if self.renamed:
            yield FileNote(ProblemCode.RENAMED_COLUMNS, ", ".join(self.renamed)[:500])

    def positions(self, columns: Collection[str] | None) -> list[int]:
        """Return where these columns are; where all are, without."""
        return [i for i, name in enumerate(self.unique) if columns is None or name in columns]


def unique_names(written: Sequence[str]) -> ColumnNames:
    """Tell columns of one name apart by numbers; the first of them keeps it.

    Raises:
        TooLargeError: they are too many.

    """
    check_column_count(len(written))
    taken, numbers = set(written), {name: count(2) for name in written}
    own: dict[str, None] = {}
    made: list[str] = []
    for name in written:
        free = name
        if name in own:
            free = next(new for i in numbers[name] if (new := f"{name} {i}") not in taken)
            made.append(free)
        own[free] = None
    return ColumnNames(list(own), made)
