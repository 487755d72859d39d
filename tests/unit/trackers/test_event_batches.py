"""What a tracker gets of a run's events: whole steps, each of them once."""

import random
from pathlib import Path

import pytest

from studio.protocols.events import Event, Failed, Resumed
from studio.protocols.run_dir import RunDir
from studio.trackers.contract import TrackerState
from studio.trackers.event_batches import read_next
from tests.support.tracked_runs import (
    alarmed,
    expected_losses,
    logged,
    resumed_run,
    sampled,
    started,
    write_log,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


class Reader:
    """A tracker that keeps what it gets, and can take steps back."""

    def __init__(self, run: RunDir) -> None:
        self.log, self.state = run.events, TrackerState()
        self.losses: list[tuple[int, float]] = []
        self.answers: list[int] = []
        self.rewinds: list[int] = []

    def read(self, *, is_over: bool = False) -> list[tuple[int, float]]:
        while (reading := read_next(self.log, self.state, is_over=is_over)) is not None:
            if (step := reading.rewind) is not None:
                self.rewinds.append(step)
                self.losses = [one for one in self.losses if one[0] <= step]
                self.answers = [one for one in self.answers if one <= step]
            self.losses += [(one.step, one.values["loss"]) for one in reading.batch.points]
            self.answers += [one.step for one in reading.batch.samples]
            self.state = TrackerState.model_validate_json(reading.state.model_dump_json())
        return self.losses


def test_newest_step_waits_until_it_is_complete(run: RunDir) -> None:
    write_log(run, started(), logged(1), logged(2))
    reader = Reader(run)

    assert reader.read() == [(1, 1.0)]
    write_log(run, sampled(2), logged(3))
    assert (reader.read(), reader.answers) == ([(1, 1.0), (2, 2.0)], [2])
    assert reader.read(is_over=True)[-1] == (3, 3.0)


def test_last_step_of_ended_attempt_does_not_wait(run: RunDir) -> None:
    write_log(run, started(), logged(1), Failed(code="killed", message="It was killed."))

    assert Reader(run).read() == [(1, 1.0)]


def test_steps_after_checkpoint_are_replaced(run: RunDir) -> None:
    write_log(run, started(), *(logged(step, loss=-1.0) for step in range(1, 6)), sampled(5))
    reader = Reader(run)
    reader.read(is_over=True)
    write_log(run, Resumed(step=2, attempt=2), started(), *(logged(step) for step in range(3, 8)))

    assert reader.read(is_over=True) == [(1, -1), (2, -1), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7)]
    assert (reader.rewinds, reader.answers) == ([2], [])


def test_repeated_steps_of_old_run_are_left_out_at_once(run: RunDir) -> None:
    write_log(run, *resumed_run(30))
    reader = Reader(run)

    assert dict(reader.read(is_over=True)) == expected_losses(30)
    assert (len(reader.losses), reader.rewinds) == (30, [])


def test_restart_from_first_step_voids_everything(run: RunDir) -> None:
    write_log(run, started(), logged(1, loss=9.0), logged(2, loss=9.0))
    reader = Reader(run)
    reader.read(is_over=True)
    write_log(run, started(), logged(1), logged(2), logged(3))

    assert reader.read(is_over=True) == [(1, 1), (2, 2), (3, 3)]


def test_steps_that_go_back_unannounced_count(run: RunDir) -> None:
    write_log(run, started(), logged(5, loss=9.0), logged(6, loss=9.0), logged(5), logged(6))

    assert Reader(run).read(is_over=True) == [(5, 5), (6, 6)]


def test_log_that_was_deleted_is_read_from_its_new_beginning(run: RunDir) -> None:
    write_log(run, started(), *(logged(step, loss=9.0) for step in range(1, 9)))
    reader = Reader(run)
    reader.read(is_over=True)
    run.events.path.unlink()
    write_log(run, started(), logged(1))

    assert (reader.read(is_over=True), reader.rewinds) == ([(1, 1.0)], [-1])


def test_line_that_is_no_event_is_skipped(run: RunDir) -> None:
    write_log(run, started(), logged(1))
    with run.events.path.open("ab") as file:
        file.write(b'{"kind": "progr\n')
    write_log(run, logged(2))

    assert Reader(run).read(is_over=True) == [(1, 1.0), (2, 2.0)]


def test_one_step_may_be_larger_than_a_batch(run: RunDir) -> None:
    write_log(run, started(), logged(1), *(sampled(1, "x" * 1000) for _ in range(200)), logged(2))
    reader = Reader(run)

    assert (reader.read(), len(reader.answers)) == ([(1, 1.0)], 200)


@pytest.mark.parametrize("seed", range(20))
def test_any_course_is_read_once_however_it_is_split(run: RunDir, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 -- draws a course
    reader, step, truth = Reader(run), 0, dict[int, float]()
    run.root.mkdir()
    log = run.events
    for attempt in range(1, 5):
        events: list[Event] = [] if attempt == 1 else [Resumed(step=step, attempt=attempt)]
        truth = {one: loss for one, loss in truth.items() if one <= step}
        events.append(started())
        for one in range(step + 1, step + 1 + draw.randrange(400)):
            events += [logged(one, loss=attempt * 1000.0 + one)]
            events += [alarmed(one)] if draw.random() < 0.1 else []
            truth[one] = attempt * 1000.0 + one
        for event in events:
            log.append(event)
            if draw.random() < 0.02:
                reader.read()
        step = draw.randrange(max(truth, default=0) + 1)

    assert reader.read(is_over=True) == sorted(truth.items())
