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


def _studio_metrics(collected: StudioMetrics) -> Iterator[Family]:
    by_status = {status.value: count for status, count in collected.runs.items()}
    yield labelled_metric("studio_runs", "gauge", "Runs by status.", "status", by_status)
    waiting = by_status["queued"] - collected.held
    yield gauge("studio_queue_length", "Runs waiting for a slot.", waiting)
    yield gauge("studio_queue_held", "Runs on hold until they are released.", collected.held)
    yield gauge(
        "studio_queue_oldest_seconds", "Longest wait for a slot.", collected.oldest_wait_seconds
    )
    yield gauge("studio_slots", "Slots of all known workers.", collected.slots)
    yield gauge("studio_slots_used", "Slots in use.", collected.slots_used)
    if collected.worker_silence_seconds is not None:
        silence = collected.worker_silence_seconds
        yield gauge(
            "studio_worker_heartbeat_age_seconds",
            "Seconds since the last heartbeat of a worker.",
            silence,
        )
    yield gauge(
        "studio_worker_failing_steps",
        "Steps of the worker loop that are failing now.",
        collected.worker_failing,
    )
    yield gauge(
        "studio_worker_step_failures",
        "Failed steps of the worker loop since the worker started.",
        collected.worker_failures,
    )
    samples = histogram_samples(
        prometheus_metrics.DURATION_BUCKETS,
        collected.durations,
        collected.duration_count,
        collected.duration_seconds,
    )
    help_text = "Seconds from claim to end of existing runs; deleting a run removes it."
    yield Family("studio_run_duration_seconds", "histogram", help_text, [*samples])
    yield gauge("studio_tokens", "Tokens trained on, over existing runs.", collected.tokens)
    yield labelled_metric(
        "studio_alarms", "gauge", "Alarms of existing runs.", "code", collected.alarms
    )
    yield gauge(
        "studio_messages_waiting", "Notifications not yet sent.", collected.messages_waiting
    )


def _database_bytes(database: Path) -> int:
    """Return the size of the database file and its write-ahead log in bytes."""
    files = (database, database.with_name(database.name + "-wal"))
    return sum(path.stat().st_size for path in files if path.exists())
