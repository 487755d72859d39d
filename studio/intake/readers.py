"""Which reader reads which format."""

from collections.abc import Collection
from pathlib import Path

from studio.intake.csv_rows import rows_in_table
from studio.intake.json_rows import rows_in_list, rows_on_lines
from studio.intake.kinds import Format
from studio.intake.parquet_rows import rows_in_parquet
from studio.intake.rows import Rows

PLACES: dict[str, str] = {"jsonl": "line", "json": "row", "csv": "line", "parquet": "row"}
"""What the number of a row counts."""


def rows(path: Path, kind: Format, limit: int, columns: Collection[str] | None = None) -> Rows:
    """Read a file row by row. Naming the columns spares Parquet the reading of others."""
    match kind:
        case "jsonl":
            return rows_on_lines(path, limit)
        case "json":
            return rows_in_list(path, limit)
        case "csv":
            return rows_in_table(path, limit)
        case "parquet":
            return rows_in_parquet(path, limit, columns)
