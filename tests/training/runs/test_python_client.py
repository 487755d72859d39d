"""The studio from Python and from a terminal: a real server, a real worker, one short run."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from studio.client import (
    ApiError,
    AsyncStudio,
    Run,
    Studio,
    UnreachableError,
    async_client,
    endpoints,
    sync_client,
)
from studio.client.resources import Resource
from tests.support import live_studio
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROWS = "".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(50))


@pytest.fixture(scope="module")
def lives(
    starter_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[live_studio.Studio]:
    studio = live_studio.Studio.copied(starter_home, tmp_path_factory.mktemp("client") / "home")
    studio.start()
    yield studio
    live_studio.stop_everything(studio)


@pytest.fixture(scope="module")
def studio(lives: live_studio.Studio) -> Iterator[Studio]:
    with Studio(lives.url) as studio:
        yield studio


@pytest.fixture(scope="module")
def done(studio: Studio) -> Run:
    return studio.runs.wait(studio.runs.submit("quick", live_studio.QUICK).id)


def ran(lives: live_studio.Studio, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "studio", *words],
        env=os.environ | {"STUDIO_URL": lives.url, "STUDIO_HOME": str(lives.home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_terminal_queues_export(lives: live_studio.Studio, studio: Studio, done: Run) -> None:
    told = ran(lives, "runs", "export", str(done.id), "--dtype", "float32")
    (export,) = studio.runs.exports(done.id).data

    assert told.stdout == f"Export {export.id} is queued: {export.kind} in float32.\n"


def test_wait_returns_finished_run(studio: Studio, done: Run) -> None:
    numbers = studio.runs.metrics(done.id, ["loss"], between=(1, 10))

    assert (done.status, done.step, done.error) == ("succeeded", 30, None)
    assert math.isfinite(done.metrics["loss"])
    assert numbers.x == list(range(1, 11))


def test_stream_returns_metrics_of_every_step(studio: Studio, done: Run) -> None:
    told = [event for event in studio.runs.stream(done.id) if event.event == "metrics"]
    steps = {row["step"] for event in told for row in json.loads(event.data)}

    assert steps == set(range(31))  # what it could do before it learnt is step 0


def test_run_artifact_is_downloaded(studio: Studio, done: Run, tmp_path: Path) -> None:
    files = {one.name: one.bytes for one in studio.runs.artifacts(done.id).data}
    made = studio.runs.download(done.id, "adapter_model.safetensors", tmp_path / "weights")

    assert made.stat().st_size == files["adapter_model.safetensors"]


def test_dataset_upload_reports_progress(studio: Studio, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    heard: list[tuple[int, int]] = []
    made = studio.datasets.add(
        tmp_path / "rows.jsonl", name="sent", progress=lambda sent, size: heard.append((sent, size))
    )

    assert (made.name, made.train_rows + made.validation_rows) == ("sent", 50)
    assert heard[-1] == (len(ROWS), len(ROWS))
    assert made in list(studio.datasets.list())


def test_lists_are_read_across_pages(studio: Studio, done: Run) -> None:
    made = studio.experiments.create("many", done.recipe)
    studio.runs.cancel(studio.runs.again(done.id).id)
    pages = studio._transport.iterate(replace(endpoints.runs(), params={"limit": 1}))

    assert len([run.id for run in pages]) == len(list(studio.runs.list())) > 1
    assert studio.experiments.get(made.id).name == "many"
    assert [run.id for run in studio.runs.list(status="succeeded")] == [done.id]


def test_api_error_carries_field_and_hint(studio: Studio) -> None:
    with pytest.raises(ApiError) as refused:
        studio.runs.submit("wrong", {"base_model": "starter", "dataset": "nowhere"})

    assert (refused.value.status, refused.value.code, refused.value.param) == (
        422,
        "invalid",
        "dataset",
    )
    assert refused.value.hint


def test_unreachable_server_raises_unreachable_error() -> None:
    with (
        pytest.raises(UnreachableError),
        Studio(f"http://127.0.0.1:{live_studio.free_port()}") as gone,
    ):
        gone.queue()


def test_async_client_waits_streams_and_lists(lives: live_studio.Studio, done: Run) -> None:
    async def ask() -> tuple[Run, list[str], list[int]]:
        async with AsyncStudio(lives.url) as studio:
            run = await studio.runs.wait(done.id)
            told = [event.event async for event in studio.runs.stream(done.id)]
            found = [one.id async for one in studio.runs.list("status:succeeded")]
        return run, told, found

    run, told, found = asyncio.run(ask())

    assert run == done
    assert "metrics" in told
    assert found == [done.id]


def test_sync_and_async_clients_have_same_methods() -> None:
    def able(module: Any) -> dict[str, list[str]]:  # noqa: ANN401 -- a module
        nouns = [one for one in vars(module).values() if isinstance(one, type)]
        found = {one.__name__.removeprefix("Async"): one for one in nouns}
        return {
            name: sorted(word for word in dir(one) if not word.startswith("_"))
            for name, one in found.items()
            if issubclass(one, Resource)
        }

    assert able(sync_client) == able(async_client)
    assert isfunction(sync_client.Runs.wait)
    assert "run_id" in signature(sync_client.Runs.wait).parameters


def test_watched_run_is_shown_until_it_ends(
    lives: live_studio.Studio, studio: Studio, done: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    async def watch() -> Run:
        async with AsyncStudio(lives.url) as other:
            return await other.runs.watch(done.id)

    assert studio.runs.watch(done.id) == done == asyncio.run(watch())
    assert capsys.readouterr().out == f"{done.line}\n" * 2
    assert done.line.startswith(f"quick #{done.id}: succeeded, step 30 of 30, loss ")


def test_cli_submits_run_and_lists_json(lives: live_studio.Studio, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(live_studio.QUICK))
    file = str(tmp_path / "mine.yaml")
    followed = ran(lives, "runs", "submit", file, "--set", "optimisation.max_steps=3", "--follow")
    listed = json.loads(ran(lives, "runs", "list", "mine", "--json").stdout)

    assert (followed.returncode, followed.stderr) == (0, "")
    assert "step 3  loss" in followed.stdout
    assert [(run["name"], run["step"], run["status"]) for run in listed] == [
        ("mine", 3, "succeeded")
    ]


def test_cli_imports_recipe_of_another_tool(lives: live_studio.Studio, tmp_path: Path) -> None:
    file, recipe = tmp_path / "other.yaml", tmp_path / "recipe.yaml"
    file.write_text("stage: sft\nmodel_name_or_path: starter\ndataset: starter\nwarp: 9\n")

    printed = ran(lives, "recipes", "import", str(file), "--output", str(recipe))
    as_json = json.loads(ran(lives, "recipes", "import", str(file), "--json").stdout)

    assert "Not here (1)" in printed.stdout
    assert [one["key"] for one in as_json["absent"]] == ["warp"]
    assert yaml.safe_load(recipe.read_text(encoding="utf-8"))["dataset"] == "starter"


def test_follow_exits_with_1_when_run_is_cancelled(
    lives: live_studio.Studio, studio: Studio
) -> None:
    run = studio.runs.submit("away", live_studio.QUICK)
    studio.runs.cancel(run.id)
    followed = ran(lives, "runs", "follow", str(run.id), "--json")

    assert followed.returncode == 1
    assert json.loads(followed.stdout)["status"] == "cancelled"


def test_interrupting_follow_does_not_stop_run(lives: live_studio.Studio, studio: Studio) -> None:
    long = live_studio.QUICK | {
        "optimisation": live_studio.QUICK["optimisation"] | {"max_steps": 100_000}
    }
    run = studio.runs.submit("long", long)
    follows = subprocess.Popen(
        [sys.executable, "-m", "studio", "runs", "follow", str(run.id)],
        env=os.environ | {"STUDIO_URL": lives.url, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follows.stdout is not None
    assert follows.stdout.readline().startswith("step ")
    follows.send_signal(signal.SIGINT)
    _, said = follows.communicate(timeout=60)

    assert (follows.returncode, f"Run {run.id} keeps running." in said) == (130, True)
    assert studio.runs.get(run.id).status == "running"
    studio.runs.cancel(run.id)
    wait_until(lambda: studio.runs.get(run.id).is_final)


@pytest.mark.parametrize(
    "words",
    [("runs", "show"), ("runs", "metrics"), ("runs", "compare")],
)
def test_table_commands_show_metrics(
    lives: live_studio.Studio, done: Run, words: tuple[str, str]
) -> None:
    shown = ran(lives, *words, str(done.id))

    assert (shown.returncode, shown.stderr) == (0, "")
    assert "loss" in shown.stdout


def test_report_command_saves_reports(lives: live_studio.Studio, done: Run, tmp_path: Path) -> None:
    run_id, path = str(done.id), tmp_path / "report.html"
    answer = ran(lives, "runs", "report", run_id, "--output", str(path))
    assert "".join(answer.stdout.split()) == f"Saved{path}."
    assert f"{done.name} <span" in path.read_text(encoding="utf-8")

    ran(lives, "runs", "report", run_id, "--base", run_id, "--output", str(path))
    assert "Comparison report" in path.read_text(encoding="utf-8")


def test_failed_command_prints_error_sentence(lives: live_studio.Studio) -> None:
    refused = ran(lives, "runs", "cancel", "999")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Run 999 does not exist.")


def test_docs_script_works(lives: live_studio.Studio) -> None:
    told = (live_studio.ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    script = told.partition("```python\n")[2].partition("```")[0]
    short = script.replace(
        '{"base_model": "starter", "dataset": "starter"}', repr(live_studio.QUICK)
    )
    done = subprocess.run(
        [sys.executable, "-c", short],
        env=os.environ | {"STUDIO_URL": lives.url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert short != script
    assert "\nsucceeded " in done.stdout
    assert "\nconflict " in done.stdout
