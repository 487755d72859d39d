"""The report of a comparison: its verdict, curves, metrics, settings, answers and machines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from sqlmodel import Session

from studio.db.tables import Run
from studio.methods import METRICS
from studio.services.compare import compare, verdict
from studio.services.compare.compare import IGNORED_KEYS, Comparison, MetricCell, SettingDifference
from studio.services.runs import artifacts, runs
from studio.services.samples import sample_ratings
from studio.web.compare import comparison_export, curve_styles, sample_table
from studio.web.compare.comparison_url import ComparisonQuery
from studio.web.compare.sample_table import Cell, SampleFilter, Table
from studio.web.compare.svg_chart import ChartSize
from studio.web.i18n import formatting
from studio.web.reports.report_file import render_report
from studio.web.reports.report_parts import (
    BUCKETS,
    CHART_HEIGHT,
    CHART_WIDTH,
    DrawnChart,
    draw_chart,
    shorten,
)

COLUMNS = 5
"""Runs beside each other in one table: as many as fit on paper."""
MAX_POINTS, MIN_BUCKETS = 2000, 40
"""Points of all curves in a chart, if not of too few in each."""
MAX_CHARTS, MAX_METRICS, MAX_SETTINGS = 12, 40, 80
MAX_PROMPTS, MAX_ANSWER_RUNS, MAX_ANSWER = 20, 8, 600
MAX_VALUE, MAX_SHORT_LABEL = 120, 24
"""Characters of a setting or name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """The answer of one run to a prompt."""

    heading: str
    text: str
    when: str
    is_right: bool | None
    is_missing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPrompt:
    prompt: str
    expected: str
    answers: Sequence[GivenAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A run above its column."""

    label: str
    short_label: str
    """For each cell, where a narrow screen shows no columns."""
    run_id: int
    is_base: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run was made with, and whether it ran as planned."""

    run: Run
    label: str
    hue: int
    dash: int
    data: str
    machine: str
    alarms: int
    is_as_planned: bool | None
    """None if its formats were not measured."""


def render_comparison_report(
    db: Session, view: ComparisonQuery, title: str, text: str, *, is_file: bool
) -> str:
    """Return the report of a comparison as HTML; a file has no links to the studio."""
    made = compare.compare(db, view.runs, view.base if view.base in view.runs else None)
    table = _answer_table(db, view, made)
    return render_report(
        "reports/comparison.html",
        title=shorten(title, MAX_VALUE),
        text=shorten(text, 4000),
        query=view.query(),
        made=made,
        is_file=is_file,
        made_at=datetime.now(UTC),
        verdict=verdict.judge(db, made),
        facts=list(_list_facts(db, made)),
        charts=_draw_charts(db, view, made),
        metric_tables=list(_metric_tables(made)),
        has_unknown_noise=any(
            cell.is_undecided and cell.noise == "unknown"
            for cells in made.metrics.values()
            for cell in cells
        ),
        setting_tables=list(_setting_tables(made, view)),
        tallies=[
            pair for pair in zip(table.headings, table.tallies, strict=False) if pair[1].judged
        ],
        prompts=list(_list_prompts(table)),
        prompt_count=table.matching,
        answer_runs=min(len(made.runs), MAX_ANSWER_RUNS),
    )


def _draw_charts(db: Session, view: ComparisonQuery, made: Comparison) -> list[DrawnChart]:
    keys = comparison_export.metric_keys(db, view, made)[:MAX_CHARTS]
    view = view.model_copy(update={"m": keys})
    buckets = min(BUCKETS, max(MIN_BUCKETS, MAX_POINTS // len(made.runs)))
    size = ChartSize(width=CHART_WIDTH, height=CHART_HEIGHT, buckets=buckets)
    charts = comparison_export.prepare_charts(db, view, made, size)
    return [draw_chart(chart) for chart in charts.values()]


def _list_facts(db: Session, made: Comparison) -> Iterator[RunFacts]:
    styles = curve_styles.run_styles(made.runs)
    for run in made.runs:
        run_id = run.id or 0
        data = artifacts.dataset_facts(db, run)
        resolved = run.resolved
        plan, audit = resolved.get("plan", {}), resolved.get("audit", {})
        yield RunFacts(
            run=run,
            label=shorten(made.labels[run_id], MAX_VALUE),
            hue=styles[run_id].hue,
            dash=styles[run_id].dash,
            data=f"{data.name} v{data.version} · {data.rows_sha256[:12]}" if data else "",
            machine=str(resolved.get("device_name", "")),
            alarms=len(runs.list_alarms(db, run_id)),
            is_as_planned=all(audit.get(key) == value for key, value in plan.items())
            if audit
            else None,
        )


def _metric_tables(made: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the final metrics, a few runs at a time."""
    known = [*METRICS]
    names = sorted(
        made.metrics, key=lambda name: (known.index(name) if name in known else len(known), name)
    )[:MAX_METRICS]
    for places in _columns(made):
        yield {
            "heads": _headings(made, places),
            "rows": [
                (
                    formatting.metric_title(name),
                    [_metric(made.metrics[name][i], name) for i in places],
                )
                for name in names
            ],
        }


def _columns(made: Comparison) -> Iterator[Sequence[int]]:
    """Yield the places of the runs that stand beside each other."""
    count = len(made.runs)
    yield from (range(start, min(start + COLUMNS, count)) for start in range(0, count, COLUMNS))


def _metric(cell: MetricCell, name: str) -> dict[str, str]:
    is_judged = bool(cell.delta) and cell.noise != "unknown"
    return {
        "value": formatting.metric_value(cell.value, name),
        "change": formatting.change(cell.delta, name),
        "verdict": cell.verdict,
        "noise": comparison_export.NOISE_LABELS[cell.noise] if is_judged else "",
    }


def _setting_tables(made: Comparison, view: ComparisonQuery) -> Iterator[dict[str, Any]]:
    """Yield the settings that differ, or all if the page shows all, a few runs at a time."""
    chosen = [
        setting
        for setting in made.differences
        if view.all or (setting.differs and (view.noise or setting.key not in IGNORED_KEYS))
    ][:MAX_SETTINGS]
    if chosen:
        for places in _columns(made):
            rows = [(setting.key, _values(setting, places)) for setting in chosen]
            yield {"heads": _headings(made, places), "rows": rows}


def _values(setting: SettingDifference, places: Sequence[int]) -> list[str]:
    return [shorten(formatting.setting(setting.values[i]), MAX_VALUE) for i in places]


def _headings(made: Comparison, places: Sequence[int]) -> list[Heading]:
    return [
        Heading(
            label=shorten(made.labels[run.id or 0], MAX_VALUE),
            short_label=f"#{run.id} {shorten(made.labels[run.id or 0], MAX_SHORT_LABEL)}",
            run_id=run.id or 0,
            is_base=run is made.base,
        )
        for run in (made.runs[i] for i in places)
    ]


def _answer_table(db: Session, view: ComparisonQuery, made: Comparison) -> Table:
    """Return the answers of the first runs, the baseline's first."""
    ordered = sorted(made.runs, key=lambda run: run is not made.base)[:MAX_ANSWER_RUNS]
    ids = [run.id or 0 for run in ordered]
    criteria = SampleFilter(differs=view.differs, find=view.find, all_prompts=view.whole)
    samples = compare.list_samples(db, ids)
    table = sample_table.table_across_runs(
        ordered, samples, sample_ratings.load_scores(db, ids), criteria
    )
    labels = [f"{shorten(made.labels[run_id], MAX_VALUE)} #{run_id}" for run_id in ids]
    return replace(table, headings=labels)


def _list_prompts(table: Table) -> Iterator[AnsweredPrompt]:
    for row in islice(table.rows, MAX_PROMPTS):
        yield AnsweredPrompt(
            prompt=shorten(row.prompt, MAX_ANSWER),
            expected=shorten(row.expected, MAX_ANSWER),
            answers=[
                _given_answer(heading, cell)
                for heading, cell in zip(table.headings, row.cells, strict=True)
            ],
        )


def _given_answer(heading: str, cell: Cell) -> GivenAnswer:
    pieces = [*cell.excerpt, *cell.remainder]
    text = "".join(piece.text for piece in pieces if piece.kind != "gone")
    return GivenAnswer(
        heading=heading,
        text=shorten(text, MAX_ANSWER),
        when=cell.when,
        is_right=cell.is_right,
        is_missing=not cell.sample_id,
    )
