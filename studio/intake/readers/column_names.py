"""Make the column names of a table unique, because a row has one value per name."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from studio.intake.files.limits import check_column_count
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote


@dataclass(frozen=True, slots=True)
class ColumnNames:
    unique: list[str]
    """One name per column, in order."""
    renamed: list[str]
    """Of these, the names that are not in the file."""

    def notes(self) -> Iterator[FileNote]:
        """Yield a note if columns were renamed."""
        if self.renamed:
            yield FileNote(ProblemCode.RENAMED_COLUMNS, ", ".join(self.renamed)[:500])

    def positions(self, columns: Collection[str] | None) -> list[int]:
        """Return the positions of these columns, or of all columns for None."""
        return [i for i, name in enumerate(self.unique) if columns is None or name in columns]


def unique_names(names: Sequence[str]) -> ColumnNames:
    """Make names unique by numbering repeated ones; the first of them stays unchanged.

    Raises:
        TooLargeError: there are too many columns.

    """
    check_column_count(len(names))
    taken, numbers = set(names), {name: count(2) for name in names}
    unique: dict[str, None] = {}
    renamed: list[str] = []
    for name in names:
        candidate = name
        if name in unique:
            candidate = next(
                numbered for i in numbers[name] if (numbered := f"{name} {i}") not in taken
            )
            renamed.append(candidate)
        unique[candidate] = None
    return ColumnNames(list(unique), renamed)
