"""A whole studio on PostgreSQL: web, worker and a run that trains, in processes of their own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import live_studio
from tests.support.live_studio import Studio, get_run, metric_steps, submit_run
from tests.support.postgres_server import Server
from tests.support.waiting import wait_until


@pytest.fixture
def studio(postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    monkeypatch.setenv("STUDIO_DATABASE", postgres.url(postgres.create()))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    studio = Studio(home, live_studio.free_port())
    studio.start()
    yield studio
    live_studio.stop_everything(studio)


@pytest.mark.slow
def test_run_trains_and_is_kept_when_the_studio_restarts(studio: Studio) -> None:
    number = submit_run(studio)
    wait_until(lambda: get_run(studio, number)["status"] in {"succeeded", "failed"})
    studio.interrupt()
    studio.wait()
    shutil.rmtree(studio.home / "cache", ignore_errors=True)
    studio.start()

    assert get_run(studio, number)["status"] == "succeeded"
    assert metric_steps(studio, number)
    assert not (studio.home / "studio.db").exists()
