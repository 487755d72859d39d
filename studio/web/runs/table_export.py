"""The table of runs to take elsewhere: the very rows and columns shown, in four formats."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from studio.services.search import run_table, table_groups
from studio.services.search.query_fields import Field
from studio.services.search.run_table import MAX_EXPORTED, TableView
from studio.web.runs import run_table as shown

_LATEX = {
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
class Sheet:
    names: Sequence[str]
    titles: Sequence[str]
    numeric: Sequence[bool]
    raw: Sequence[Sequence[Any]]
    written: Sequence[Sequence[str]]
    """As the page shows it."""


def sheet(db: Session, view: TableView) -> Sheet:
    """Gather all that a view shows, on all of its pages.

    Raises:
        QueryError: the query cannot be understood.

    """
    grouped = table_groups.group_runs(db, view)
    return _of_groups(grouped) if grouped else _of_runs(db, view)


def _of_runs(db: Session, view: TableView) -> Sheet:
    found = run_table.load_page(db, view, limit=MAX_EXPORTED)
    columns = found.columns
    values = [[line.value(one) for one in columns] for line in found.lines]
    ids = [line.run.id for line in found.lines]
    return Sheet(
        names=["id", *(one.name for one in columns)],
        titles=["Run", *map(shown.title, columns)],
        numeric=[True, *map(shown.is_numeric, columns)],
        raw=[[run_id, *map(shown.raw, row)] for run_id, row in zip(ids, values, strict=True)],
        written=[
            [f"#{run_id}", *(shown.text(*pair) for pair in zip(columns, row, strict=True))]
            for run_id, row in zip(ids, values, strict=True)
        ],
    )


def _of_groups(grouped: table_groups.GroupedRuns) -> Sheet:
    numbers = [one for one in grouped.columns if one.is_number]
    spread = [f"{one.name}{part}" for one in numbers for part in ("", "_sd", "_n")]
    return Sheet(
        names=[grouped.field.name, "runs", *spread],
        titles=[shown.title(grouped.field), "Runs", *map(shown.title, numbers)],
        numeric=[False, True, *(True for _ in numbers)],
        raw=[[one.value, one.count, *_parts(one, numbers)] for one in grouped.groups],
        written=[
            [
                shown.text(grouped.field, one.value),
                str(one.count),
                *(shown.spread(column, one.spreads.get(column.name)) for column in numbers),
            ]
            for one in grouped.groups
        ],
    )


def _parts(group: table_groups.RunGroup, numbers: Sequence[Field]) -> list[Any]:
    found = (group.spreads.get(one.name) for one in numbers)
    return [
        part
        for one in found
        for part in ((one.mean, one.deviation, one.n) if one else (None, None, 0))
    ]


def as_csv(made: Sheet) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(map(_flat, made.names))
    writer.writerows([_flat(value) for value in row] for row in made.raw)
    return file.getvalue()


def as_json(made: Sheet) -> str:
    rows = [dict(zip(made.names, row, strict=True)) for row in made.raw]
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


def as_markdown(made: Sheet) -> str:
    rule = ["---:" if numeric else "---" for numeric in made.numeric]
    rows = [[_plain(cell) for cell in row] for row in (made.titles, *made.written)]
    rows.insert(1, rule)
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def as_latex(made: Sheet) -> str:
    """Write a table for the booktabs package; small curves stay out, for fonts lack their signs."""
    kept = [i for i, name in enumerate(made.names) if not name.endswith(".curve")]
    form = "".join("r" if made.numeric[i] else "l" for i in kept)
    rows = [[_tex(row[i]) for i in kept] for row in (made.titles, *made.written)]
    head, *body = (" & ".join(row) + r" \\" for row in rows)
    inside = (r"\toprule", head, r"\midrule", *body, r"\bottomrule")
    return "\n".join((rf"\begin{{tabular}}{{{form}}}", *inside, r"\end{tabular}", ""))


FORMATS: dict[str, tuple[Callable[[Sheet], str], str]] = {
    "csv": (as_csv, "text/csv; charset=utf-8"),
    "json": (as_json, "application/json"),
    "md": (as_markdown, "text/markdown; charset=utf-8"),
    "tex": (as_latex, "application/x-tex; charset=utf-8"),
}
"""What writes each format, by the ending of its files, and what browsers are told it is."""


_RECKONED = ("=", "+", "-", "@", "\t", "\r", "\n", "\N{FULLWIDTH EQUALS SIGN}")


def _flat(value: Any) -> Any:  # noqa: ANN401 -- as JSON has it
    """Return a value for one cell. A text that a spreadsheet would reckon with is kept a text."""
    if isinstance(value, list):
        return _flat(" ".join(f"{one}" for one in value))
    if isinstance(value, str) and value.startswith(_RECKONED):
        return f"'{value}"
    return value


def _plain(text: str) -> str:
    for sign in "\\|*_`[]<>":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _tex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split(" ")))
