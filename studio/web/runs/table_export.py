"""Export the run table, with the rows and columns shown, as CSV, JSON, Markdown or LaTeX."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session
from studio.services.metrics import metric_summaries
from studio.services.search import run_table
from studio.services.search.query_fields import Field
from studio.services.search.run_table import MAX_EXPORTED, TableView
from studio.web.runs import run_table as shown

CHUNK = 500
"""How many runs are loaded at a time."""

_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\N{EN DASH}": "--",
    "±": r"$\pm$",
    "\N{NARROW NO-BREAK SPACE}": r"\,",
    "\N{NO-BREAK SPACE}": "~",
    "\N{MINUS SIGN}": "$-$",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableData:
    names: Sequence[str]
    titles: Sequence[str]
    numeric: Sequence[bool]
    values: Iterable[Sequence[Any]]
    """Of runs, values are loaded while they are read, once."""
    formatted: Iterable[Sequence[str]]
    """The values as the page shows them, to be read instead."""


def load_table(db: Session, engine: Engine, view: TableView) -> TableData:
    """Load everything that a view shows, from all its pages.

    Raises:
        QueryError: the query cannot be parsed.

    """
    grouped = run_table.group_runs(db, view)
    return _group_table(grouped) if grouped else _run_table(db, engine, view)


def _run_table(db: Session, engine: Engine, view: TableView) -> TableData:
    ids = run_table.find_sorted_ids(db, view, limit=MAX_EXPORTED)
    columns = run_table.resolve_columns(view, metric_summaries.list_keys(db))
    rows = _read_rows(engine, ids, columns)
    return TableData(
        names=["id", *(column.name for column in columns)],
        titles=["Run", *map(shown.column_title, columns)],
        numeric=[True, *map(shown.is_numeric, columns)],
        values=([run_id, *map(shown.raw_value, row)] for run_id, row in rows),
        formatted=(
            [f"#{run_id}", *(shown.format_value(*pair) for pair in zip(columns, row, strict=True))]
            for run_id, row in rows
        ),
    )


def _read_rows(
    engine: Engine, ids: Sequence[int], columns: Sequence[Field]
) -> Iterator[tuple[int | None, list[Any]]]:
    """Read the values of runs, some at a time; those deleted meanwhile are left out."""
    for start in range(0, len(ids), CHUNK):
        with read_session(engine) as db:
            lines = run_table.load_rows(db, ids[start : start + CHUNK], columns)
            rows = [(line.run.id, [line.value(column) for column in columns]) for line in lines]
        yield from rows


def _group_table(grouped: run_table.GroupedRuns) -> TableData:
    numbers = [item for item in grouped.columns if item.is_number]
    spread = [f"{item.name}{part}" for item in numbers for part in ("", "_sd", "_n")]
    return TableData(
        names=[grouped.field.name, "runs", *spread],
        titles=[shown.column_title(grouped.field), "Runs", *map(shown.column_title, numbers)],
        numeric=[False, True, *(True for _ in numbers)],
        values=[[item.value, item.count, *_spread_parts(item, numbers)] for item in grouped.groups],
        formatted=[
            [
                shown.format_value(grouped.field, item.value),
                str(item.count),
                *(shown.format_spread(column, item.spreads.get(column.name)) for column in numbers),
            ]
            for item in grouped.groups
        ],
    )


def _spread_parts(group: run_table.RunGroup, numbers: Sequence[Field]) -> list[Any]:
    spreads = (group.spreads.get(item.name) for item in numbers)
    return [
        value
        for item in spreads
        for value in ((item.mean, item.deviation, item.n) if item else (None, None, 0))
    ]


def to_csv(made: TableData) -> Iterator[str]:
    """Write the table in parts, while it is loaded."""
    rows = iter(made.values)
    part: list[Sequence[Any]] = [made.names]
    while part:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerows([_csv_cell(value) for value in row] for row in part)
        yield file.getvalue()
        part = list(islice(rows, CHUNK))


def to_json(made: TableData) -> str:
    rows = [dict(zip(made.names, row, strict=True)) for row in made.values]
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


def to_markdown(made: TableData) -> str:
    alignment = ["---:" if numeric else "---" for numeric in made.numeric]
    rows = [[_escape_markdown(cell) for cell in row] for row in (made.titles, *made.formatted)]
    rows.insert(1, alignment)
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def to_latex(made: TableData) -> str:
    """Write a booktabs table, without sparklines: LaTeX fonts lack their characters."""
    columns = [i for i, name in enumerate(made.names) if not name.endswith(".curve")]
    form = "".join("r" if made.numeric[i] else "l" for i in columns)
    rows = [[_escape_latex(row[i]) for i in columns] for row in (made.titles, *made.formatted)]
    head, *body = (" & ".join(row) + r" \\" for row in rows)
    lines = (r"\toprule", head, r"\midrule", *body, r"\bottomrule")
    return "\n".join((rf"\begin{{tabular}}{{{form}}}", *lines, r"\end{tabular}", ""))


FORMATS: dict[str, tuple[Callable[[TableData], str | Iterator[str]], str]] = {
    "csv": (to_csv, "text/csv; charset=utf-8"),
    "json": (to_json, "application/json"),
    "md": (to_markdown, "text/markdown; charset=utf-8"),
    "tex": (to_latex, "application/x-tex; charset=utf-8"),
}
"""The writer and the media type of each file extension."""


_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r", "\n", "\N{FULLWIDTH EQUALS SIGN}")


def _csv_cell(value: Any) -> Any:  # noqa: ANN401 -- any JSON value
    """Return a value for one cell. Text that a spreadsheet would run as a formula is escaped."""
    if isinstance(value, list):
        return _csv_cell(" ".join(f"{item}" for item in value))
    if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES):
        return f"'{value}"
    return value


def _escape_markdown(text: str) -> str:
    for sign in "\\|*_`[]<>":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _escape_latex(text: str) -> str:
    return "".join(_LATEX_ESCAPES.get(sign, sign) for sign in " ".join(text.split(" ")))
