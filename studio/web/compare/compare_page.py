"""Compare runs side by side. The URL holds every choice."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any
from zlib import crc32

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import InvalidError
from studio.services.compare import compare, comparisons, curve_groups, recipe_differences
from studio.services.compare.comparable_metrics import is_noisy
from studio.services.compare.compare import Comparison
from studio.services.compare.recipe_differences import IGNORED_KEYS, SettingDifference
from studio.services.estimates import run_progress
from studio.services.metrics import metrics
from studio.services.runs import runs
from studio.services.samples import sample_ratings
from studio.web.compare import comparison_export, curve_styles, parallel_coordinates, sample_table
from studio.web.compare.comparison_url import ComparisonQuery, runs_outside_brush
from studio.web.http.deps import DB
from studio.web.i18n import formatting
from studio.web.rendering.render import page, redirect

router = APIRouter(include_in_schema=False)

RECENT_RUNS = 50
QueryParams = Annotated[ComparisonQuery, Query()]


@router.get("/compare")
def show(request: Request, db: DB, view: QueryParams) -> Response:
    if view.run:
        return redirect(request, f"/compare?runs={_join_ids([*view.runs, *view.run])}")
    saved = comparisons.get(db, view.saved) if view.saved else None
    ids = runs.existing_ids(db, view.runs) if saved else view.runs
    if view.choose or len(ids) < 2:  # noqa: PLR2004 -- a comparison needs two runs
        return _run_chooser(request, db, ids)
    gone = [one for one in view.runs if one not in ids]
    view = view.model_copy(update={"runs": ids})
    made = compare.compare(db, ids, view.base if view.base in ids else None)
    return page(
        request,
        "compare/show.html",
        made=made,
        view=view,
        saved=saved,
        gone=gone,
        finals={name: made.metrics[name] for name in sorted(made.metrics, key=_metric_order)},
        directed=compare.LOWER_IS_BETTER,
        related=json.dumps(parallel_coordinates.build_axes(made)),
        **_chart_context(db, made, view),
        **_settings_context(made, view),
        **_samples_context(db, made, view),
    )


@router.get("/compare/picture.svg")
def chart_svg(db: DB, view: QueryParams, key: Annotated[str, Query(max_length=100)]) -> Response:
    """Draw one metric as the view shows it."""
    made = compare.compare(db, view.runs, view.base)
    drawn = comparison_export.draw_charts(db, view.model_copy(update={"m": [key]}), made)
    if key not in drawn:
        raise InvalidError(f"These runs reported no {key}.", param="key")
    return Response(drawn[key], media_type="image/svg+xml")


@router.get("/compare/export")
def export(db: DB, view: QueryParams) -> Response:
    """Download the comparison as Markdown with charts."""
    saved = comparisons.get(db, view.saved) if view.saved else None
    content = comparison_export.build_zip(db, view, "comparison", saved)
    return comparison_export.attachment_response(content, "comparison.zip", "application/zip")


def _chart_context(db: Session, made: Comparison, view: ComparisonQuery) -> dict[str, Any]:
    """Return the data of the charts and their legend."""
    ids = [run.id or 0 for run in made.runs]
    gathered = curve_groups.group_runs(made.runs, view.group) if view.group else []
    colours = (
        curve_styles.group_styles(gathered) if view.group else curve_styles.run_styles(made.runs)
    )
    owner = {run: min(group.runs) for group in gathered for run in group.runs}
    differing = [key for key in made.differing if key not in IGNORED_KEYS]
    return {
        "lines": curve_styles.run_styles(made.runs),
        "drawn_groups": list(colours.values()) if view.group else [],
        "groupings": sorted({*differing, *([view.group] if "." in view.group else [])}),
        "charted": json.dumps([asdict(colours[one]) for one in colours]),
        "owners": json.dumps(owner),
        "keys": [(key, is_noisy(key)) for key in comparison_export.metric_keys(db, view, made)],
        "told": sorted(metrics.list_keys(db, ids), key=_metric_order),
        "axes": _axis_options(db, ids, view.x),
        "ids": _join_ids(ids),
        "shut": {*view.hide},
        "filtered": runs_outside_brush(made, view.brush),
        "without": {one: _url_without_run(ids, one, view) for one in ids},
    }


def _settings_context(made: Comparison, view: ComparisonQuery) -> dict[str, Any]:
    differing = [one for one in made.differences if one.differs]
    kept = [one for one in differing if view.noise or one.key not in IGNORED_KEYS]
    shown: Sequence[SettingDifference] = made.differences if view.all else kept
    return {
        "sections": recipe_differences.group_by_section(shown),
        "left_out": [one.key for one in differing if one not in kept and not view.all],
        "base_place": made.runs.index(made.base),
    }


def _axis_options(db: Session, ids: Sequence[int], chosen: str) -> Mapping[str, str]:
    told = sorted({*metrics.list_keys(db, ids), chosen} - set(metrics.AXES), key=_metric_order)
    return {name: formatting.axis_title(name) for name in (*metrics.AXES, *told)}


def _url_without_run(ids: Sequence[int], left: int, view: ComparisonQuery) -> str:
    """Return the URL of the comparison without one of its runs."""
    base = None if view.base == left else view.base
    return "/compare?" + view.query(runs=[one for one in ids if one != left], base=base)


def _run_chooser(request: Request, db: Session, chosen: Sequence[int]) -> Response:
    recent = runs.newest(db, runs.RunFilter(), limit=RECENT_RUNS)
    shown = {run.id for run in recent}
    missing = [runs.get(db, run_id) for run_id in chosen if run_id not in shown]
    kept = comparisons.newest(db, limit=RECENT_RUNS)
    return page(
        request,
        "compare/choose.html",
        runs=[*missing, *recent],
        chosen=set(chosen),
        progress_of=run_progress.measure,
        kept=kept,
    )


def _join_ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, dict.fromkeys(ids)))


def _metric_order(key: str) -> tuple[int, str]:
    """Order metrics as `METRIC_TITLES` lists them, unknown ones last."""
    known = list(formatting.METRIC_TITLES)
    return (known.index(key) if key in known else len(known), key)


def _samples_context(db: Session, made: Comparison, view: ComparisonQuery) -> dict[str, Any]:
    """Return the runs' answers side by side, the baseline's first."""
    ordered = sorted(made.runs, key=lambda run: run is not made.base)
    ids = [run.id or 0 for run in ordered]
    wanted = sample_table.SampleFilter(
        differs=view.differs, find=view.find, all_prompts=view.whole, blind=view.blind
    )
    said, scores = compare.list_samples(db, ids), sample_ratings.load_scores(db, ids)
    return {
        "said": sample_table.table_across_runs(ordered, said, scores, wanted),
        "ordered": ordered,
        "rated": sample_ratings.count_rated(db, ids),
        "can_rate": any(one.stage == sample_ratings.FINAL_STAGE for one in said),
        # Changes with each rating, so that an order that was revealed is not used again.
        "seed": crc32(repr((ids, scores)).encode()),
    }
