"""The hardware strip: how busy the machines are, now or while a run trained."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Run
from studio.services.hardware import usage_history, usage_problems
from studio.services.hardware.usage_history import MachineHistory
from studio.services.runs import runs
from studio.web.hardware.hardware_tiles import CURVE_TIME, Tile, list_tiles
from studio.web.http.deps import DB
from studio.web.rendering.render import page

router = APIRouter(include_in_schema=False)

RunId = Annotated[int | None, Query(ge=1, lt=2**63)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineView:
    host: str
    tiles: list[Tile]
    problems: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareStrip:
    run_id: int | None
    machines: list[MachineView]
    is_over: bool = False
    """Whether it shows the averages of a run that has ended."""
    is_measured: bool = True
    """Whether a worker measures any machine at present."""


@router.get("/hardware")
def show(request: Request, db: DB, run: RunId = None) -> Response:
    """Return the strip, which open pages refresh with each sample."""
    strip = strip_for_run(db, runs.get(db, run)) if run else strip_of_machines(db)
    return page(request, "hardware/strip.html", strip=strip)


def strip_of_machines(db: Session) -> HardwareStrip:
    """Return the load of all machines with a worker."""
    views = [_view(machine, None) for machine in usage_history.list_machines(db, CURVE_TIME)]
    return HardwareStrip(run_id=None, machines=views, is_measured=bool(views))


def strip_for_run(db: Session, run: Run) -> HardwareStrip:
    """Return the load of the machine a run trains on; once it has ended, the load meanwhile."""
    run_id = run.id or 0
    if not run.status.is_final:
        machine = usage_history.machine_of_run(db, run_id, CURVE_TIME)
        views = [_view(machine, run_id)] if machine else []
        # A run that waits or has just started is in no sample yet.
        is_measured = bool(views) or bool(usage_history.list_machines(db, usage_history.FRESH))
        return HardwareStrip(run_id=run_id, machines=views, is_measured=is_measured)
    points = usage_history.list_run_points(db, run_id)
    tiles = list_tiles(points, run_id, is_over=True) if points else []
    views = [MachineView(host=points[-1].usage.host, tiles=tiles, problems=[])] if tiles else []
    return HardwareStrip(run_id=run_id, machines=views, is_over=True)


def _view(machine: MachineHistory, run_id: int | None) -> MachineView:
    return MachineView(
        host=machine.host,
        tiles=list_tiles(machine.points, run_id),
        problems=usage_problems.list_problems([point.usage for point in machine.points]),
    )
