"""Runs side by side. Everything that is chosen stands in the address."""

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
from studio.web.compare.comparison_url import View, brushed
from studio.web.http.deps import DB
from studio.web.i18n import formatting
from studio.web.rendering.render import go, page

router = APIRouter(include_in_schema=False)

RECENT = 50
Seen = Annotated[View, Query()]


@router.get("/compare")
def show(request: Request, db: DB, view: Seen) -> Response:
    if view.run:
        return go(request, f"/compare?runs={_joined([*view.runs, *view.run])}")
    saved = comparisons.get(db, view.saved) if view.saved else None
    ids = runs.existing_ids(db, view.runs) if saved else view.runs
    if view.choose or len(ids) < 2:  # noqa: PLR2004 -- one run compares to nothing
        return _chooser(request, db, ids)
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
        finals={name: made.metrics[name] for name in sorted(made.metrics, key=_rank)},
        directed=compare.LOWER_IS_BETTER,
        related=json.dumps(parallel_coordinates.axes(made)),
        **_drawn(db, made, view),
        **_settings(made, view),
        **_answers(db, made, view),
    )


@router.get("/compare/picture.svg")
def picture(db: DB, view: Seen, key: Annotated[str, Query(max_length=100)]) -> Response:
    """Draw one metric as the view shows it."""
    made = compare.compare(db, view.runs, view.base)
    drawn = comparison_export.charted(db, view.model_copy(update={"m": [key]}), made)
    if key not in drawn:
        raise InvalidError(f"These runs have told no {key}.", param="key")
    return Response(drawn[key], media_type="image/svg+xml")


@router.get("/compare/export")
def export(db: DB, view: Seen) -> Response:
    """Hand on what is shown, as Markdown with pictures."""
    saved = comparisons.get(db, view.saved) if view.saved else None
    content = comparison_export.zipped(db, view, "comparison", saved)
    return comparison_export.download(content, "comparison.zip", "application/zip")


def _drawn(db: Session, made: Comparison, view: View) -> dict[str, Any]:
    """Return what the charts and their legend are drawn from."""
    ids = [run.id or 0 for run in made.runs]
    gathered = curve_groups.group_runs(made.runs, view.group) if view.group else []
    colours = curve_styles.of_groups(gathered) if view.group else curve_styles.of_runs(made.runs)
    owner = {run: min(group.runs) for group in gathered for run in group.runs}
    differing = [key for key in made.differing if key not in IGNORED_KEYS]
    return {
        "lines": curve_styles.of_runs(made.runs),
        "drawn_groups": list(colours.values()) if view.group else [],
        "groupings": sorted({*differing, *([view.group] if "." in view.group else [])}),
        "charted": json.dumps([asdict(colours[one]) for one in colours]),
        "owners": json.dumps(owner),
        "keys": [(key, is_noisy(key)) for key in comparison_export.keys_of(db, view, made)],
        "told": sorted(metrics.list_keys(db, ids), key=_rank),
        "axes": _axes(db, ids, view.x),
        "ids": _joined(ids),
        "shut": {*view.hide},
        "filtered": brushed(made, view.brush),
        "without": {one: _without(ids, one, view) for one in ids},
    }


def _settings(made: Comparison, view: View) -> dict[str, Any]:
    differing = [one for one in made.differences if one.differs]
    kept = [one for one in differing if view.noise or one.key not in IGNORED_KEYS]
    shown: Sequence[SettingDifference] = made.differences if view.all else kept
    return {
        "sections": recipe_differences.group_by_section(shown),
        "left_out": [one.key for one in differing if one not in kept and not view.all],
        "base_place": made.runs.index(made.base),
    }


def _axes(db: Session, ids: Sequence[int], chosen: str) -> Mapping[str, str]:
    told = sorted({*metrics.list_keys(db, ids), chosen} - set(metrics.AXES), key=_rank)
    return {name: formatting.axis(name) for name in (*metrics.AXES, *told)}


def _without(ids: Sequence[int], left: int, view: View) -> str:
    """Return the address of the page that leaves a run out."""
    base = None if view.base == left else view.base
    return "/compare?" + view.query(runs=[one for one in ids if one != left], base=base)


def _chooser(request: Request, db: Session, chosen: Sequence[int]) -> Response:
    recent = runs.newest(db, runs.RunFilter(), limit=RECENT)
    shown = {run.id for run in recent}
    missing = [runs.get(db, run_id) for run_id in chosen if run_id not in shown]
    kept = comparisons.newest(db, limit=RECENT)
    return page(
        request,
        "compare/choose.html",
        runs=[*missing, *recent],
        chosen=set(chosen),
        progress_of=run_progress.measure,
        kept=kept,
    )


def _joined(ids: Sequence[int]) -> str:
    return ",".join(map(str, dict.fromkeys(ids)))


def _rank(key: str) -> tuple[int, str]:
    """Order metrics as the words list them, unknown ones last."""
    known = list(formatting.METRICS)
    return (known.index(key) if key in known else len(known), key)


def _answers(db: Session, made: Comparison, view: View) -> dict[str, Any]:
    """Lay the runs' answers side by side, the baseline's first."""
    ordered = sorted(made.runs, key=lambda run: run is not made.base)
    ids = [run.id or 0 for run in ordered]
    wanted = sample_table.Wanted(
        differs=view.differs, find=view.find, whole=view.whole, blind=view.blind
    )
    said, scores = compare.list_samples(db, ids), sample_ratings.load_scores(db, ids)
    return {
        "said": sample_table.beside(ordered, said, scores, wanted),
        "ordered": ordered,
        "rated": sample_ratings.count_rated(db, ids),
        "can_rate": any(one.stage == sample_ratings.FINAL_STAGE for one in said),
        # With each rating another, so that nobody meets an order that was once revealed.
        "seed": crc32(repr((ids, scores)).encode()),
    }
