"""The Numerics tab of a run: its health signals, alarms, and steps that became NaN or infinite."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.db.tables import Run
from studio.methods import METRICS
from studio.protocols.run_dir import RunDir
from studio.services.precision import magnitudes
from studio.services.runs import fixes, nonfinite_steps, rollouts, runs
from studio.web.http.deps import DB, Config
from studio.web.i18n import formatting
from studio.web.rendering.render import block, page
from studio.web.runs.run_frame import tab_page

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of a run's numerical health."""

    name: str
    value: str
    meaning: str


def list_signals(run: Run) -> list[Signal]:
    """Return the newest value of each signal that the run has reported."""
    return [
        Signal(
            name=formatting.metric_title(name),
            value=formatting.metric_value(run.metrics[name], name),
            meaning=spec.meaning,
        )
        for name, spec in METRICS.items()
        if spec.meaning and name in run.metrics
    ]


@router.get("/runs/{run_id}/numerics")
def show_numerics(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    return tab_page(request, db, run, "numerics", **_health_context(db, run, config))


@router.get("/runs/{run_id}/parts/numerics")
def health_block(request: Request, run_id: int, db: DB, config: Config) -> Response:
    run = runs.get(db, run_id)
    return block(
        request, "runs/numerics.html", "numerics", run=run, **_health_context(db, run, config)
    )


@router.get("/runs/{run_id}/broken")
def show_nonfinite_step(
    request: Request, run_id: int, db: DB, config: Config, step: int = 0
) -> Response:
    run = runs.get(db, run_id)
    log = RunDir(config.runs / str(run_id)).log
    step_report = nonfinite_steps.inspect_step(db, run_id, step, log)
    return page(request, "runs/nonfinite_step.html", run=run, found=step_report)


def _health_context(db: DB, run: Run, config: Config) -> dict[str, Any]:
    """Return the context of the numerics section. A failed run shows its fixes with the failure."""
    alarms, folder = runs.list_alarms(db, run.id or 0), RunDir(config.runs / str(run.id))
    fix_lists = (fixes.list_fixes(db, item.data["code"], run.recipe) for item in alarms)
    all_fixes = (
        {}
        if run.error_code
        else {item.title: item for group in fix_lists for item in group if not item.swap}
    )
    return {
        "signals": list_signals(run),
        "alarms": alarms,
        "about_answers": rollouts.ALARMS if rollouts.count_bytes(folder) else (),
        "fixes": list(all_fixes.values()),
        "measured": magnitudes.read_magnitudes(folder.events),
        "ranges": magnitudes.format_ranges(),
        "update_ranges": magnitudes.update_ranges(),
    }
