"""Fifty viewers of one run while its numbers pour in and the server is killed."""

from collections.abc import Callable

import pytest

from studio.db.session import open_engine, unit_of_work
from tests.support.factories import make_running
from tests.support.live_studio import Studio
from tests.support.stream_viewers import add_metrics, watch_streams

pytestmark = pytest.mark.faults

VIEWERS = 50
BATCHES = 40
BATCH = 20
STEPS = BATCHES * BATCH
KILLED_AFTER = (10, 25)


def test_every_stream_viewer_receives_every_point_once(make_studio: Callable[[], Studio]) -> None:
    studio = make_studio()
    studio.kill()
    studio.wait()
    studio.worker = False
    engine = open_engine(studio.home / "studio.db")
    with unit_of_work(engine) as db:
        number = make_running(db).id or 0
    studio.start()

    with watch_streams(f"{studio.url}/api/v1/runs/{number}/stream", VIEWERS, STEPS) as viewers:
        for batch in range(BATCHES):
            add_metrics(engine, number, batch * BATCH + 1, BATCH)
            if batch in KILLED_AFTER:
                studio.kill()
                studio.wait()
                studio.start()
        seen = [viewer.result() for viewer in viewers]
    engine.dispose()

    assert seen == [list(range(1, STEPS + 1))] * VIEWERS
