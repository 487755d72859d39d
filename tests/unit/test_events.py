"""The file in which a training process tells its story."""

import math
from pathlib import Path

import pytest

from studio.protocols.events import EventLog, Finished, MetricsLogged, PhaseChanged, Started


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl")


def test_events_come_back_numbered(log: EventLog) -> None:
    log.append(Started(total_steps=3, resolved={}))
    log.append(Finished(metrics={"loss": 0.5}))

    events, _offset = log.read()
    assert [(event.seq, event.kind) for event in events] == [(1, "started"), (2, "finished")]


def test_numbering_goes_on_in_another_process(log: EventLog) -> None:
    log.append(PhaseChanged(name="loading"))
    EventLog(log.path).append(PhaseChanged(name="training"))

    events, _offset = log.read()
    assert [event.seq for event in events] == [1, 2]


def test_half_a_line_waits(log: EventLog) -> None:
    log.append(PhaseChanged(name="loading"))
    with log.path.open("a") as file:
        file.write('{"kind": "pha')
    events, offset = log.read()

    assert [event.kind for event in events] == ["phase"]
    assert log.read(offset) == ([], offset)


def test_half_a_line_of_a_killed_writer_spoils_no_other(log: EventLog) -> None:
    log.append(PhaseChanged(name="loading"))
    log.append(PhaseChanged(name="training"))
    whole = log.path.read_bytes()

    def after_a_kill(cut: int) -> list[tuple[int, str]]:
        log.path.write_bytes(whole[:cut])
        EventLog(log.path).append(PhaseChanged(name="again"))
        return [(e.seq, e.name) for e in log.read()[0] if isinstance(e, PhaseChanged)]

    first = whole.index(b"\n") + 1
    assert {tuple(after_a_kill(cut)) for cut in range(first, len(whole) - 1)} == {
        ((1, "loading"), (2, "again"))
    }
    # Only the end of the line was missing: the event itself was told.
    told = [(1, "loading"), (2, "training"), (3, "again")]
    assert after_a_kill(len(whole) - 1) == after_a_kill(len(whole)) == told


def test_a_garbage_line_is_passed_over(log: EventLog) -> None:
    log.path.write_text('\x00\x00 not json\n{"kind": "no such kind"}\n')
    log.append(PhaseChanged(name="loading"))

    events, _offset = log.read()
    assert [event.kind for event in events] == ["phase"]


def test_nan_stays_nan(log: EventLog) -> None:
    numbers = {"loss": math.nan, "grad_norm": math.inf}
    log.append(MetricsLogged(step=1, epoch=0.1, tokens=8, seconds=1, metrics=numbers))

    events, _offset = log.read()
    assert isinstance(events[0], MetricsLogged)
    assert math.isnan(events[0].metrics["loss"])
    assert events[0].metrics["grad_norm"] == math.inf


def test_any_cut_of_the_file_reads_the_same(log: EventLog) -> None:
    for step in range(1, 6):
        log.append(PhaseChanged(name=f"phase {step}"))
    whole = log.path.read_bytes()

    def read_in_two(cut: int) -> list[int]:
        log.path.write_bytes(whole[:cut])
        first, offset = log.read()
        log.path.write_bytes(whole)
        return [event.seq for event in first + log.read(offset)[0]]

    assert {tuple(read_in_two(cut)) for cut in range(len(whole) + 1)} == {(1, 2, 3, 4, 5)}
