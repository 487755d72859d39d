"""Compare runs side by side, and save comparisons. The URL holds every choice."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any
from zlib import crc32

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.methods import METRICS, direction
from studio.services.compare import compare, comparisons, seed_noise, verdict
from studio.services.compare.comparable_metrics import is_noisy
from studio.services.compare.compare import IGNORED_KEYS, Comparison, SettingDifference
from studio.services.estimates import run_progress
from studio.services.evaluations import evaluation_matrix
from studio.services.metrics import metrics
from studio.services.runs import runs
from studio.services.samples import sample_ratings
from studio.web.compare import comparison_export, curve_styles, sample_table
from studio.web.compare.comparison_url import ComparisonQuery, parse_query, runs_outside_brush
from studio.web.http.deps import DB
from studio.web.i18n import formatting
from studio.web.rendering.render import attachment_response, page, redirect

router = APIRouter(include_in_schema=False)


def build_axes(made: Comparison) -> list[dict[str, Any]]:
    """Return an axis for each setting and each final metric in which the runs differ.

    An axis has a value for each run, or None. Numbers are drawn to scale; other values become a
    list of names.
    """
    settings = [
        _axis(key, key.rpartition(".")[2].replace("_", " "), made.settings[key])
        for key in made.differing
        if key not in IGNORED_KEYS
    ]
    finals = [
        _axis(name, formatting.metric_title(name), [_finite(cell.value) for cell in cells])
        for name, cells in made.metrics.items()
    ]
    return settings + [axis for axis in finals if len({*axis["values"]} - {None}) > 1]


def _axis(key: str, label: str, values: Sequence[Any]) -> dict[str, Any]:
    is_number = all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in values
    )
    axis_values = list(values) if is_number else [str(value) for value in values]
    return {"key": key, "label": label, "isNumber": is_number, "values": axis_values}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


RECENT_RUNS = 50
QueryParams = Annotated[ComparisonQuery, Query()]
FormText = Annotated[str, Form()]


@router.get("/compare")
def show(request: Request, db: DB, view: QueryParams) -> Response:
    if view.run:
        return redirect(request, f"/compare?runs={_join_ids([*view.runs, *view.run])}")
    saved = comparisons.get(db, view.saved) if view.saved else None
    ids = runs.existing_ids(db, view.runs) if saved else view.runs
    if view.choose or len(ids) < 2:  # noqa: PLR2004 -- a comparison needs two runs
        return _run_chooser(request, db, ids)
    missing = [run_id for run_id in view.runs if run_id not in ids]
    view = view.model_copy(update={"runs": ids})
    comparison = compare.compare(db, ids, view.base if view.base in ids else None)
    return page(
        request,
        "compare/show.html",
        made=comparison,
        view=view,
        saved=saved,
        gone=missing,
        finals={
            name: comparison.metrics[name] for name in sorted(comparison.metrics, key=_metric_order)
        },
        directed={name for name in comparison.metrics if direction(name)},
        related=json.dumps(build_axes(comparison)),
        verdict=verdict.judge(db, comparison),
        evaluation=evaluation_matrix.load(db, comparison.runs, comparison.base),
        **_chart_context(db, comparison, view),
        **_settings_context(comparison, view),
        **_samples_context(db, comparison, view),
    )


@router.post("/compare/seeds")
def add_seeds(
    request: Request, db: DB, run: Annotated[list[int], Form()], query: FormText = ""
) -> Response:
    """Queue more seeds of these runs' recipes, and compare them with the runs in view."""
    added = [repeat.id or 0 for repeat in verdict.add_seeds(db, run)]
    view = parse_query(query)
    wanted = view.model_copy(update={"runs": [*view.runs, *added], "group": "seed"})
    return redirect(request, wanted.url)


@router.get("/compare/export")
def export(db: DB, view: QueryParams) -> Response:
    """Download the comparison as Markdown with charts."""
    saved = comparisons.get(db, view.saved) if view.saved else None
    content = comparison_export.build_zip(db, view, "comparison", saved)
    return attachment_response(content, "comparison.zip", "application/zip")


def _chart_context(db: Session, comparison: Comparison, view: ComparisonQuery) -> dict[str, Any]:
    """Return the data of the charts and their legend."""
    ids = [run.id or 0 for run in comparison.runs]
    groups = seed_noise.group_runs(comparison.runs, view.group) if view.group else []
    styles = (
        curve_styles.group_styles(groups)
        if view.group
        else curve_styles.run_styles(comparison.runs)
    )
    group_ids = {run: min(group.runs) for group in groups for run in group.runs}
    differing = [key for key in comparison.differing if key not in IGNORED_KEYS]
    return {
        "lines": curve_styles.run_styles(comparison.runs),
        "drawn_groups": list(styles.values()) if view.group else [],
        "groupings": sorted({*differing, *([view.group] if "." in view.group else [])}),
        "charted": json.dumps([asdict(styles[run_id]) for run_id in styles]),
        "owners": json.dumps(group_ids),
        "keys": [
            (key, is_noisy(key)) for key in comparison_export.metric_keys(db, view, comparison)
        ],
        "metrics": sorted(metrics.list_keys(db, ids), key=_metric_order),
        "axes": _axis_options(db, ids, view.x),
        "ids": _join_ids(ids),
        "shut": {*view.hide},
        "filtered": runs_outside_brush(comparison, view.brush),
        "without": {run_id: _url_without_run(ids, run_id, view) for run_id in ids},
    }


def _settings_context(comparison: Comparison, view: ComparisonQuery) -> dict[str, Any]:
    differing = [difference for difference in comparison.differences if difference.differs]
    relevant = [
        difference for difference in differing if view.noise or difference.key not in IGNORED_KEYS
    ]
    visible: Sequence[SettingDifference] = comparison.differences if view.all else relevant
    return {
        "sections": compare.group_by_section(visible),
        "left_out": [
            difference.key
            for difference in differing
            if difference not in relevant and not view.all
        ],
        "base_place": comparison.runs.index(comparison.base),
    }


def _axis_options(db: Session, ids: Sequence[int], chosen: str) -> Mapping[str, str]:
    reported = sorted({*metrics.list_keys(db, ids), chosen} - set(metrics.AXES), key=_metric_order)
    return {name: formatting.axis_title(name) for name in (*metrics.AXES, *reported)}


def _url_without_run(ids: Sequence[int], run_id: int, view: ComparisonQuery) -> str:
    """Return the URL of the comparison without one of its runs."""
    base = None if view.base == run_id else view.base
    return "/compare?" + view.query(
        runs=[other_id for other_id in ids if other_id != run_id], base=base
    )


def _run_chooser(request: Request, db: Session, chosen: Sequence[int]) -> Response:
    recent = runs.newest(db, runs.RunFilter(), limit=RECENT_RUNS)
    recent_ids = {run.id for run in recent}
    missing = [runs.get(db, run_id) for run_id in chosen if run_id not in recent_ids]
    saved = comparisons.newest(db, limit=RECENT_RUNS)
    return page(
        request,
        "compare/choose.html",
        runs=[*missing, *recent],
        chosen=set(chosen),
        progress_of=run_progress.measure,
        kept=saved,
    )


def _join_ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, dict.fromkeys(ids)))


def _metric_order(key: str) -> tuple[int, str]:
    """Order metrics as the catalogue lists them, unknown ones last."""
    ordered_keys = list(METRICS)
    return (ordered_keys.index(key) if key in ordered_keys else len(ordered_keys), key)


def _samples_context(db: Session, comparison: Comparison, view: ComparisonQuery) -> dict[str, Any]:
    """Return the runs' answers side by side, the baseline's first."""
    ordered = sorted(comparison.runs, key=lambda run: run is not comparison.base)
    ids = [run.id or 0 for run in ordered]
    criteria = sample_table.SampleFilter(
        differs=view.differs, find=view.find, all_prompts=view.whole, blind=view.blind
    )
    samples, scores = compare.list_samples(db, ids), sample_ratings.load_scores(db, ids)
    return {
        "sample_table": sample_table.table_across_runs(ordered, samples, scores, criteria),
        "ordered": ordered,
        "rated": sample_ratings.count_rated(db, ids),
        "can_rate": any(sample.stage == sample_ratings.FINAL_STAGE for sample in samples),
        # Changes with each rating, so that an order that was revealed is not used again.
        "seed": crc32(repr((ids, scores)).encode()),
    }


@router.get("/comparisons/{number}")
def open_saved(request: Request, number: int, db: DB) -> Response:
    saved = comparisons.get(db, number)
    return redirect(request, parse_query(saved.query).model_copy(update={"saved": number}).url)


@router.get("/comparisons/{number}/export")
def export_saved(number: int, db: DB) -> Response:
    return comparison_export.zip_response(db, comparisons.get(db, number))


@router.post("/comparisons")
def save_comparison(
    request: Request, db: DB, name: FormText = "", text: FormText = "", query: FormText = ""
) -> Response:
    comparison = comparisons.save(db, name, text, query)
    return redirect(request, f"/comparisons/{comparison.id}")


@router.post("/comparisons/{number}")
def change_saved(
    request: Request,
    number: int,
    db: DB,
    name: FormText = "",
    text: FormText = "",
    query: FormText = "",
) -> Response:
    comparisons.update(db, number, name=name, text=text, query=query)
    return redirect(request, f"/comparisons/{number}")


@router.post("/comparisons/{number}/delete")
def delete_saved(request: Request, number: int, db: DB) -> Response:
    comparisons.delete(db, number)
    return redirect(request, "/compare")
