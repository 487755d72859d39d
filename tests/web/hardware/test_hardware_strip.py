"""The hardware strip on pages, and the same over REST."""

from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.hardware_usage.usage import HardwareUsage, RunUsage
from studio.services.hardware import usage_history
from studio.web.i18n import formatting
from tests.support.factories import make_run, make_running
from tests.support.hardware_samples import GB, make_gpu, make_point, make_usage
from tests.support.page_reader import Node, parse_page


def record(engine: Engine, *samples: HardwareUsage) -> None:
    with unit_of_work(engine) as db:
        for place, usage in enumerate(samples):
            point = make_point(usage, seconds_ago=5 * (len(samples) - place))
            usage_history.record(db, "w", point)


def strip(client: TestClient, path: str) -> Node:
    return parse_page(client.get(path).text).one(id="hardware")


def tiles(shown: Node) -> dict[str, list[str]]:
    """Return the texts of each tile by its title."""
    found = (tile for tile in shown.one("dl").all("div"))
    return {tile.one("dt").text: [dd.text for dd in tile.all("dd") if dd.text] for tile in found}


def test_queue_shows_each_sensor(client: TestClient, engine: Engine) -> None:
    record(engine, *[make_usage(celsius=55.0, others_cpu=0.1, gpus=[make_gpu()])] * 2)

    assert tiles(strip(client, "/queue")) == {
        "CPU": ["50 %", "4 cores · others 10 %"],
        "Memory": ["4 GB", "of 16 GB"],
        "GPU 0": ["90 %", "H100"],
        "GPU memory": ["40 GB", "of 80 GB"],
        "GPU temperature": ["60 °C"],
        "GPU power": ["300 W", "of 700 W"],
        "CPU temperature": ["55 °C"],
        "Disk": ["100 GB free", "of 500 GB"],
    }


def test_sensors_that_are_missing_are_left_out(client: TestClient, engine: Engine) -> None:
    bare = make_gpu(celsius=None, watts=None, memory_used_bytes=None, busy=None)
    record(engine, make_usage(gpus=[bare]))

    shown = tiles(strip(client, "/hardware"))
    assert list(shown) == ["CPU", "Memory", "GPU 0", "Disk"]
    assert shown["GPU 0"] == [formatting.NO_VALUE, "H100"]


def test_several_gpus_have_one_tile_each(client: TestClient, engine: Engine) -> None:
    record(engine, make_usage(gpus=[make_gpu(), make_gpu(index=1, busy=0.1)]))

    shown = tiles(strip(client, "/hardware"))
    assert shown["GPU 1"] == ["10 %", "40 GB · 60 °C · 300 W"]
    assert "GPU power" not in shown


def test_problems_are_shown_in_words(client: TestClient, engine: Engine) -> None:
    record(engine, *[make_usage(memory_used_bytes=15.2 * GB)] * 3)

    shown = strip(client, "/queue").all("p")
    assert [note.text for note in shown] == ["Memory is almost full: 95 %."]


def test_problems_are_shown_in_chinese(client: TestClient, engine: Engine) -> None:
    slow = make_gpu(throttled_by=("power limit",))
    record(engine, *[make_usage(gpus=[slow], memory_used_bytes=15.2 * GB)] * 3)
    client.cookies.set("language", "zh-Hans")

    shown = strip(client, "/queue").all("p")
    assert [note.text for note in shown] == [
        "内存即将用满：95%。",  # noqa: RUF001 -- Chinese
        "GPU 0 未能全速运行。原因：功率上限。",  # noqa: RUF001 -- Chinese
    ]


def test_strip_without_a_worker_says_why_it_is_empty(client: TestClient) -> None:
    shown = strip(client, "/queue")

    assert shown.text.startswith("CPU, memory and GPU are not measured now.")
    assert shown.attributes["hx-trigger"] == "hardware-changed from:body, run-status from:body"


def test_strip_of_a_live_run_without_a_worker_says_so(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_running(db).id or 0

    assert "not measured" in strip(client, f"/hardware?run={run_id}").text


def test_strip_of_a_run_that_has_just_begun_waits_in_silence(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        run_id = make_running(db).id or 0
    record(engine, make_usage())

    assert strip(client, f"/hardware?run={run_id}").text == ""


def of_run(run_id: int, cpus: Sequence[float]) -> list[HardwareUsage]:
    return [
        make_usage(
            cpu=cpu,
            others_cpu=0.1,
            memory_used_bytes=int(cpu * 10 * GB),
            runs=[RunUsage(run_id=run_id, cpu=cpu / 2, memory_bytes=GB, gpu=1)],
            gpus=[make_gpu(), make_gpu(index=1)],
        )
        for cpu in cpus
    ]


def test_live_run_shows_its_own_part_and_its_gpu(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_running(db).id or 0
    record(engine, *of_run(run_id, [0.6, 0.8]))

    shown = tiles(strip(client, f"/hardware?run={run_id}"))
    assert shown["CPU"] == ["80 %", "4 cores · this run 40 % · others 10 %"]
    assert shown["Memory"] == ["8 GB", "of 16 GB · this run 1 GB"]
    assert [name for name in shown if name.startswith("GPU ")] == [
        "GPU 1",
        "GPU memory",
        "GPU temperature",
        "GPU power",
    ]


def test_finished_run_shows_averages_and_peaks(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run = make_running(db)
        run_id = run.id or 0
    record(engine, *of_run(run_id, [0.2, 0.9, 0.4]))
    with unit_of_work(engine) as db:
        db.merge(run).status = RunStatus.SUCCEEDED

    shown = strip(client, f"/hardware?run={run_id}")
    assert tiles(shown)["CPU"][0] == "50 %"
    assert tiles(shown)["Memory"][0] == "9 GB"
    assert "Disk" not in tiles(shown)
    assert "hx-get" not in shown.attributes


@pytest.mark.parametrize("path", ["/hardware?run=99", "/api/v1/runs/99/hardware"])
def test_run_that_does_not_exist_is_not_found(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_api_lists_newest_sample_with_history_and_problems(
    client: TestClient, engine: Engine
) -> None:
    record(engine, *[make_usage(cpu=cpu, disk_free_bytes=GB) for cpu in (0.1, 0.2, 0.3)])

    (machine,) = client.get("/api/v1/hardware/usage").json()["data"]

    assert machine["host"] == "box"
    assert machine["newest"]["usage"]["cpu"] == 0.3
    assert [point["usage"]["cpu"] for point in machine["history"]] == [0.1, 0.2, 0.3]
    assert machine["problems"] == ["The disk is almost full: 1 GB left."]


def test_api_lists_the_samples_of_a_run(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        run_id = make_running(db).id or 0
    record(engine, *of_run(run_id, [0.6, 0.8]))

    points = client.get(f"/api/v1/runs/{run_id}/hardware").json()["data"]
    assert [point["usage"]["cpu"] for point in points] == [0.6, 0.8]


def test_prometheus_has_a_gauge_for_each_sensor(client: TestClient, engine: Engine) -> None:
    record(engine, make_usage(gpus=[make_gpu()]))
    lines = client.get("/metrics").text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    values = {name.partition("{")[0]: float(value) for name, value in found.items()}

    assert {name: values[name] for name in values if name.startswith("studio_gpu")} == {
        "studio_gpu_share": 0.9,
        "studio_gpu_memory_used_bytes": 40 * GB,
        "studio_gpu_celsius": 60,
        "studio_gpu_watts": 300,
    }
    assert values["studio_cpu_share"] == 0.5
    assert values["studio_memory_used_bytes"] == 4 * GB
    assert values["studio_disk_free_bytes"] == 100 * GB


def test_missing_sensors_have_no_gauge(client: TestClient, engine: Engine) -> None:
    record(engine, make_usage(gpus=[make_gpu(celsius=None, watts=None)]))
    text = client.get("/metrics").text

    assert "studio_gpu_share{" in text
    assert "studio_gpu_celsius{" not in text
    assert "studio_gpu_watts{" not in text


def test_strip_of_a_run_that_waits_is_refreshed_later(client: TestClient, engine: Engine) -> None:
    """A page that was opened before the run started must show its load, too."""
    with unit_of_work(engine) as db:
        number = make_run(db).id

    shown = strip(client, f"/hardware?run={number}")
    assert shown.attributes["hx-get"] == f"/hardware?run={number}"
