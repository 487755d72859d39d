"""All metrics in the Prometheus text format, version 0.0.4."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import psutil
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from studio.hardware_usage.usage import HardwareUsage
from studio.services.operations.prometheus_metrics import DURATION_BUCKETS, StudioMetrics
from studio.web.middleware.request_metrics import LATENCY_BUCKETS, RequestMetrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def render_text(collected: StudioMetrics, requests: RequestMetrics) -> str:
    return generate_latest(_Metrics(collected, requests)).decode()


@dataclass(frozen=True, slots=True)
class _Metrics(Collector):
    """What one response contains."""

    collected: StudioMetrics
    requests: RequestMetrics

    def collect(self) -> Iterator[Metric]:
        yield from _studio_metrics(self.collected)
        yield _request_durations(self.requests)
        yield GaugeMetricFamily(
            "studio_stream_viewers", "Open live streams.", self.requests.open_streams
        )
        yield GaugeMetricFamily(
            "process_resident_memory_bytes",
            "Memory of the web process.",
            psutil.Process().memory_info().rss,
        )


def _studio_metrics(collected: StudioMetrics) -> Iterator[Metric]:
    by_status = {status.value: count for status, count in collected.runs.items()}
    yield _labelled_gauge("studio_runs", "Runs by status.", "status", by_status)
    for name, about, value in _studio_gauges(collected, by_status["queued"]):
        if value is not None:
            yield GaugeMetricFamily(name, about, value)
    yield _run_durations(collected)
    yield from _hardware_gauges(collected.machines)
    yield _labelled_gauge("studio_alarms", "Alarms of existing runs.", "code", collected.alarms)


def _studio_gauges(
    collected: StudioMetrics, queued: int
) -> Iterator[tuple[str, str, float | None]]:
    yield "studio_queue_length", "Runs waiting for a slot.", queued - collected.held
    yield "studio_queue_held", "Runs on hold until they are released.", collected.held
    yield "studio_queue_oldest_seconds", "Longest wait for a slot.", collected.oldest_wait_seconds
    yield "studio_slots", "Slots of all known workers.", collected.slots
    yield "studio_slots_used", "Slots in use.", collected.slots_used
    yield (
        "studio_worker_heartbeat_age_seconds",
        "Seconds since the last heartbeat of a worker.",
        collected.worker_silence_seconds,
    )
    yield (
        "studio_worker_failing_steps",
        "Steps of the worker loop that are failing now.",
        collected.worker_failing,
    )
    yield (
        "studio_worker_step_failures",
        "Failed steps of the worker loop since the worker started.",
        collected.worker_failures,
    )
    yield "studio_tokens", "Tokens trained on, over existing runs.", collected.tokens
    yield "studio_messages_waiting", "Notifications not yet sent.", collected.messages_waiting
    yield "studio_database_bytes", "Size of the database.", collected.database_bytes


def _hardware_gauges(machines: Mapping[str, HardwareUsage]) -> Iterator[Metric]:
    for name, about, field in (
        ("studio_cpu_share", "Share of the CPU in use.", "cpu"),
        ("studio_memory_used_bytes", "Memory in use.", "memory_used_bytes"),
        ("studio_disk_free_bytes", "Free space for the home.", "disk_free_bytes"),
    ):
        values = {host: float(getattr(usage, field)) for host, usage in machines.items()}
        yield _labelled_gauge(name, about, "host", values)
    for name, about, field in (
        ("studio_gpu_share", "Share of time in which a GPU computed.", "busy"),
        ("studio_gpu_memory_used_bytes", "GPU memory in use.", "memory_used_bytes"),
        ("studio_gpu_celsius", "Temperature of a GPU.", "celsius"),
        ("studio_gpu_watts", "Power of a GPU.", "watts"),
    ):
        family = GaugeMetricFamily(name, about, labels=("host", "gpu"))
        for host, usage in machines.items():
            for gpu in usage.gpus:
                if (value := getattr(gpu, field)) is not None:
                    family.add_metric((host, str(gpu.index)), value)
        yield family


def _run_durations(collected: StudioMetrics) -> Metric:
    bounds = (*map(str, DURATION_BUCKETS), "+Inf")
    counts = (*collected.durations, collected.duration_count)
    return HistogramMetricFamily(
        "studio_run_duration_seconds",
        "Seconds from claim to end of existing runs; deleting a run removes it.",
        buckets=list(zip(bounds, counts, strict=True)),
        sum_value=collected.duration_seconds,
    )


def _request_durations(requests: RequestMetrics) -> Metric:
    family = HistogramMetricFamily(
        "studio_http_request_duration_seconds",
        "Seconds until a response started, by method, route and status.",
        labels=("method", "route", "status"),
    )
    bounds = (*(f"{bound:g}" for bound in LATENCY_BUCKETS), "+Inf")
    for labels, stats in sorted(requests.tallies.items()):
        buckets = list(zip(bounds, accumulate(stats.buckets), strict=True))
        family.add_metric(labels, buckets, stats.seconds)
    return family


def _labelled_gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family
