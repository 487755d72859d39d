"""A comparison to hand on: Markdown and its curves as pictures, in one zip."""

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC

from fastapi.responses import Response
from sqlmodel import Session

from studio.db.summaries import SavedComparison as Saved
from studio.services.compare import compare
from studio.services.compare.comparable_metrics import is_noisy
from studio.services.compare.compare import Comparison, MetricCell
from studio.services.compare.recipe_differences import IGNORED_KEYS
from studio.services.metrics import metrics
from studio.web.compare import curve_styles, svg_charts
from studio.web.compare.comparison_url import View, brushed, parse
from studio.web.compare.curve_styles import Along, Laid
from studio.web.i18n import formatting

USUAL = (
    *("loss", "eval_loss", "mean_token_accuracy", "eval_mean_token_accuracy"),
    *("grad_norm", "learning_rate", "tokens_per_second"),
)
"""The metrics drawn where none are named."""

JUDGED = {
    "": "",
    "beyond": "beyond seed noise",
    "within": "within seed noise",
    "seed": "another seed of the same recipe",
    "unknown": "cannot be told apart without repeats",
}

Row = Sequence[str]


def answer(db: Session, saved: Saved) -> Response:
    """Return a saved comparison as a zip."""
    name = f"comparison-{saved.id}"
    content = zipped(db, parse(saved.query), name, saved)
    return download(content, f"{name}.zip", "application/zip")


def download(content: str | bytes, name: str, kind: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


def zipped(db: Session, view: View, name: str, saved: Saved | None = None) -> bytes:
    """Write the Markdown and a picture of each metric's curves."""
    made = compare.compare(db, view.runs, view.base)
    drawn = charted(db, view, made)
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as folder:
        for key, picture in drawn.items():
            folder.writestr(f"{name}/{key.replace('/', '-')}.svg", picture)
        text = markdown(made, view, drawn, saved)
        folder.writestr(f"{name}/{name}.md", text)
    return into.getvalue()


def keys_of(db: Session, view: View, made: Comparison) -> list[str]:
    """Return the metrics that a view draws: those it names, else the usual ones that were told."""
    told = metrics.list_keys(db, [run.id or 0 for run in made.runs])
    if view.m:
        return [key for key in view.m if key in told]
    return [key for key in USUAL if key in told] or sorted(told)[:1]


def charted(db: Session, view: View, made: Comparison) -> dict[str, str]:
    """Draw each metric of a view, as it shows them."""
    keys = keys_of(db, view, made)
    found = curve_styles.laid(db, made.runs, keys, Along(x=view.x, group=view.group))
    return {key: picture(found, key, view, made) for key in keys}


def picture(found: Laid, key: str, view: View, made: Comparison) -> str:
    """Draw one metric as a view shows it: without what it hides."""
    without = {*view.hide, *brushed(made, view.brush)}
    shown = found.drawn(key, curve_styles.hidden(found.lines, without))
    look = svg_charts.Look(
        title=formatting.metric(key),
        unit=view.x,
        weight=view.smooth if is_noisy(key) else 0,
        is_log=view.y == "log",
        is_x_log=view.xscale == "log",
        is_clipped=view.clip,
        span=view.span,
    )
    return svg_charts.svg(found.curves.x, shown, look)


def markdown(made: Comparison, view: View, drawn: Iterable[str], saved: Saved | None) -> str:
    """Write what a comparison shows, with the pictures beside it."""
    parts = [
        f"# {_safe(saved.name) if saved else 'Comparison'}",
        *([saved.text] if saved and saved.text else []),
        f"Address: `{view.address}`",
        "## Runs",
        _table(["Run", "Name", "Status", "Precision", "Started"], _runs(made)),
        "## Curves",
        *(f"![{formatting.metric(key)}]({key.replace('/', '-')}.svg)" for key in drawn),
        "## Final numbers",
        _table(["Number", *_heads(made)], _finals(made)),
        "## Settings that differ",
        _table(["Setting", *_heads(made)], _settings(made, view)),
    ]
    return "\n\n".join(parts) + "\n"


def _runs(made: Comparison) -> Iterator[Row]:
    for run in made.runs:
        started = run.started_at
        at = (
            started.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
            if started
            else formatting.NOTHING
        )
        mark = " (baseline)" if run is made.base else ""
        yield [f"#{run.id}", run.name + mark, run.status, run.recipe.precision, at]


def _heads(made: Comparison) -> list[str]:
    return [f"#{run.id} {made.labels[run.id or 0]}" for run in made.runs]


def _finals(made: Comparison) -> Iterator[Row]:
    for name, cells in made.metrics.items():
        yield [formatting.metric(name), *(_told(cell, name) for cell in cells)]


def _told(cell: MetricCell, name: str) -> str:
    parts = [formatting.measure(cell.value, name)]
    if cell.delta:
        judged = [word for word in (cell.verdict, JUDGED[cell.noise]) if word]
        parts.append(f"({', '.join([formatting.change(cell.delta, name), *judged])})")
    if cell.repeats:
        of = cell.repeats
        mean, spread = formatting.measure(of.mean, name), formatting.measure(of.spread, name)
        parts.append(f"[{mean} ± {spread}, n = {of.n}]")
    return " ".join(parts)


def _settings(made: Comparison, view: View) -> Iterator[Row]:
    for one in made.differences:
        if one.differs and (view.noise or one.key not in IGNORED_KEYS):
            yield [one.key, *(formatting.setting(value) for value in one.values)]


def _table(head: Row, rows: Iterable[Row]) -> str:
    written = [f"| {' | '.join(map(_safe, row))} |" for row in rows]
    if not written:
        return "None."
    return "\n".join([f"| {' | '.join(map(_safe, head))} |", "|---" * len(head) + "|", *written])


def _safe(said: str) -> str:
    """Keep what people have named from ending a cell or a line."""
    return " ".join(said.replace("|", "\\|").replace("<", "&lt;").split())
