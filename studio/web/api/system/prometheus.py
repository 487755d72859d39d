"""The `/metrics` endpoint for Prometheus."""

from collections.abc import Iterator
from pathlib import Path

import psutil
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from studio.services.operations import prometheus_metrics
from studio.services.operations.prometheus_metrics import StudioMetrics
from studio.web.http.deps import DB, Config
from studio.web.http.prometheus_format import (
    CONTENT_TYPE,
    Family,
    gauge,
    histogram_samples,
    labelled_metric,
    render_text,
)

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def metrics(request: Request, db: DB, config: Config) -> PlainTextResponse:
    families = [
        *_studio_metrics(prometheus_metrics.collect(db)),
        *request.app.state.traffic.to_families(),
        gauge("studio_database_bytes", "Size of the database.", _database_bytes(config.database)),
        gauge(
            "process_resident_memory_bytes",
            "Memory of the web process.",
            psutil.Process().memory_info().rss,
        ),
    ]
    return PlainTextResponse(render_text(families), media_type=CONTENT_TYPE)


def _studio_metrics(found: StudioMetrics) -> Iterator[Family]:
    by_status = {status.value: count for status, count in found.runs.items()}
    yield labelled_metric("studio_runs", "gauge", "Runs by status.", "status", by_status)
    waiting = by_status["queued"] - found.held
    yield gauge("studio_queue_length", "Runs waiting for a slot.", waiting)
    yield gauge("studio_queue_held", "Runs on hold until they are released.", found.held)
    yield gauge(
        "studio_queue_oldest_seconds", "Longest wait for a slot.", found.oldest_wait_seconds
    )
    yield gauge("studio_slots", "Slots of all known workers.", found.slots)
    yield gauge("studio_slots_used", "Slots in use.", found.slots_used)
    if found.worker_silence_seconds is not None:
        silence = found.worker_silence_seconds
        yield gauge(
            "studio_worker_heartbeat_age_seconds",
            "Seconds since the last heartbeat of a worker.",
            silence,
        )
    yield gauge(
        "studio_worker_failing_steps",
        "Steps of the worker loop that are failing now.",
        found.worker_failing,
    )
    yield gauge(
        "studio_worker_step_failures",
        "Failed steps of the worker loop since the worker started.",
        found.worker_failures,
    )
    took = histogram_samples(
        prometheus_metrics.DURATION_BUCKETS,
        found.durations,
        found.duration_count,
        found.duration_seconds,
    )
    about = "Seconds from claim to end of existing runs; deleting a run removes it."
    yield Family("studio_run_duration_seconds", "histogram", about, [*took])
    yield gauge("studio_tokens", "Tokens trained on, over existing runs.", found.tokens)
    yield labelled_metric(
        "studio_alarms", "gauge", "Alarms of existing runs.", "code", found.alarms
    )
    yield gauge("studio_messages_waiting", "Notifications not yet sent.", found.messages_waiting)


def _database_bytes(database: Path) -> int:
    """Return the size of the database file and its write-ahead log in bytes."""
    files = (database, database.with_name(database.name + "-wal"))
    return sum(path.stat().st_size for path in files if path.exists())
