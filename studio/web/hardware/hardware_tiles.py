"""The tiles of the hardware strip: a figure, a bar and a small curve for each sensor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from studio.hardware_usage.usage import GpuUsage, HardwareUsage, RunUsage, merge
from studio.services.hardware.usage_history import Point
from studio.services.hardware.usage_problems import DISK_FREE_BYTES, MEMORY_SHARE
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext

CURVE_TIME = timedelta(minutes=5)
WIDTH, HEIGHT = 120.0, 24.0
"""The size of a curve's drawing, which is stretched to the tile."""

HIGHEST_CELSIUS = 110.0
"""The top of a temperature's curve."""

JOINT = " \N{MIDDLE DOT} "

Reader = Callable[[HardwareUsage], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    title: str
    value: str
    detail: str = ""
    share: float | None = None
    """The length of its bar; None for no bar."""
    own_share: float | None = None
    """The part of the bar that runs account for: the page's run, or all of them."""
    is_high: bool = False
    """Whether so much is worth a warning colour."""
    curve: str = ""
    """The points of an SVG polyline; empty if there are too few."""


def list_tiles(
    points: Sequence[Point], run_id: int | None = None, *, is_over: bool = False
) -> list[Tile]:
    """Return the tiles of a machine: at present, or its averages and peaks once a run is over."""
    usage = merge([point.usage for point in points]) if is_over else points[-1].usage
    run = next((run for run in usage.runs if run.run_id == run_id), None)
    tiles = [
        _cpu_tile(usage, run, points),
        _memory_tile(usage, run, points),
        *_gpu_tiles(usage, run, points),
    ]
    if usage.celsius is not None:
        tiles.append(_temperature_tile(gettext("CPU temperature"), usage.celsius, points, _celsius))
    if is_over:
        return [replace(tile, share=None, own_share=None) for tile in tiles]
    return [*tiles, _disk_tile(usage)]


def _cpu_tile(usage: HardwareUsage, run: RunUsage | None, points: Sequence[Point]) -> Tile:
    cores = ngettext("%(cores)s core", "%(cores)s cores", round(usage.cores) or 1) % {
        "cores": formatting.number(usage.cores)
    }
    runs_cpu = run.cpu if run else sum(other.cpu for other in usage.runs)
    of_runs = _of_runs(run, _percent(runs_cpu)) if usage.runs else ""
    others = (
        gettext("others %(share)s") % {"share": _percent(usage.others_cpu)}
        if usage.others_cpu is not None
        else ""
    )
    return Tile(
        title=gettext("CPU"),
        value=_percent(usage.cpu),
        detail=_joined(cores, of_runs, others),
        share=usage.cpu,
        own_share=runs_cpu or None,
        curve=draw_curve(points, lambda sample: sample.cpu),
    )


def _memory_tile(usage: HardwareUsage, run: RunUsage | None, points: Sequence[Point]) -> Tile:
    total = usage.memory_total_bytes
    of_runs = run.memory_bytes if run else sum(other.memory_bytes for other in usage.runs)
    note = _of_runs(run, formatting.size(of_runs)) if usage.runs else ""
    return Tile(
        title=gettext("Memory"),
        value=formatting.size(usage.memory_used_bytes),
        detail=_joined(gettext("of %(room)s") % {"room": formatting.size(total)}, note),
        share=usage.memory_used_bytes / total,
        own_share=min(of_runs, usage.memory_used_bytes) / total or None,
        is_high=usage.memory_used_bytes / total >= MEMORY_SHARE,
        curve=draw_curve(
            points, lambda sample: sample.memory_used_bytes / sample.memory_total_bytes
        ),
    )


def _disk_tile(usage: HardwareUsage) -> Tile:
    return Tile(
        title=gettext("Disk"),
        value=gettext("%(size)s free") % {"size": formatting.size(usage.disk_free_bytes)},
        detail=gettext("of %(room)s") % {"room": formatting.size(usage.disk_total_bytes)},
        share=1 - usage.disk_free_bytes / usage.disk_total_bytes,
        is_high=usage.disk_free_bytes < DISK_FREE_BYTES,
    )


def _gpu_tiles(usage: HardwareUsage, run: RunUsage | None, points: Sequence[Point]) -> list[Tile]:
    """Return all tiles of one GPU; of several, one tile each."""
    gpus = [gpu for gpu in usage.gpus if run is None or run.gpu in (None, gpu.index)]
    if len(gpus) == 1:
        return _tiles_of_gpu(gpus[0], points)
    return [
        replace(_tiles_of_gpu(gpu, points)[0], detail=_joined(*_gpu_facts(gpu))) for gpu in gpus
    ]


def _gpu_facts(gpu: GpuUsage) -> list[str]:
    memory = formatting.size(gpu.memory_used_bytes) if gpu.memory_used_bytes is not None else ""
    heat = _degrees(gpu.celsius) if gpu.celsius is not None else ""
    power = _watts(gpu.watts) if gpu.watts is not None else ""
    return [memory, heat, power]


def _tiles_of_gpu(gpu: GpuUsage, points: Sequence[Point]) -> list[Tile]:
    def read(get: Callable[[GpuUsage], float | None]) -> Reader:
        return lambda sample: next((get(g) for g in sample.gpus if g.index == gpu.index), None)

    tiles = [
        Tile(
            title=gettext("GPU %(index)s") % {"index": gpu.index},
            value=_percent(gpu.busy),
            detail=gpu.name,
            share=gpu.busy,
            curve=draw_curve(points, read(lambda g: g.busy)),
        )
    ]
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        total = gpu.memory_total_bytes
        tiles.append(
            Tile(
                title=gettext("GPU memory"),
                value=formatting.size(gpu.memory_used_bytes),
                detail=gettext("of %(room)s") % {"room": formatting.size(total)},
                share=gpu.memory_used_bytes / total,
                curve=draw_curve(points, read(lambda g: (g.memory_used_bytes or 0) / total)),
            )
        )
    if gpu.celsius is not None:
        heat = read(lambda g: None if g.celsius is None else g.celsius / HIGHEST_CELSIUS)
        tiles.append(_temperature_tile(gettext("GPU temperature"), gpu.celsius, points, heat))
    if gpu.watts is not None:
        tiles.append(_power_tile(gpu, points, read))
    return tiles


def _power_tile(
    gpu: GpuUsage,
    points: Sequence[Point],
    read: Callable[[Callable[[GpuUsage], float | None]], Reader],
) -> Tile:
    limit, watts = gpu.watts_limit, gpu.watts or 0.0
    return Tile(
        title=gettext("GPU power"),
        value=_watts(watts),
        detail=gettext("of %(room)s") % {"room": _watts(limit)} if limit else "",
        share=watts / limit if limit else None,
        curve=draw_curve(points, read(lambda g: (g.watts or 0.0) / limit)) if limit else "",
    )


def _temperature_tile(title: str, celsius: float, points: Sequence[Point], read: Reader) -> Tile:
    return Tile(
        title=title,
        value=_degrees(celsius),
        share=celsius / HIGHEST_CELSIUS,
        curve=draw_curve(points, read),
    )


def _celsius(usage: HardwareUsage) -> float | None:
    return None if usage.celsius is None else usage.celsius / HIGHEST_CELSIUS


def draw_curve(points: Sequence[Point], read: Reader) -> str:
    """Return the points of a polyline over time, of values from 0 to 1."""
    known = [(point.at, value) for point in points if (value := read(point.usage)) is not None]
    if len(known) < 2:  # noqa: PLR2004 -- a line needs two points
        return ""
    start, span = known[0][0], (known[-1][0] - known[0][0]).total_seconds() or 1.0
    return " ".join(
        f"{WIDTH * (at - start).total_seconds() / span:.1f},"
        f"{HEIGHT - 1 - (HEIGHT - 2) * min(1.0, max(0.0, value)):.1f}"
        for at, value in known
    )


def _of_runs(run: RunUsage | None, amount: str) -> str:
    template = gettext("this run %(amount)s") if run else gettext("runs %(amount)s")
    return template % {"amount": amount}


def _joined(*parts: str) -> str:
    return JOINT.join(filter(None, parts))


def _percent(share: float | None) -> str:
    return formatting.NO_VALUE if share is None else formatting.percent(round(share, 2))


def _degrees(celsius: float) -> str:
    return f"{celsius:.0f}\N{NO-BREAK SPACE}°C"


def _watts(watts: float) -> str:
    return f"{watts:.0f}\N{NO-BREAK SPACE}W"
