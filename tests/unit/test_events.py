"""The file in which a training process tells its story."""

import math
from pathlib import Path

import pytest

from studio.protocols.events import EventLog, Finished, MetricsLogged, PhaseChanged, Started


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl")


def test_events_are_read_with_sequence_numbers(log: EventLog) -> None:
    log.append(Started(total_steps=3, resolved={}))
    log.append(Finished(metrics={"loss": 0.5}))

    events, _offset = log.read()
    assert [(event.seq, event.kind) for event in events] == [(1, "started"), (2, "finished")]


def test_sequence_numbers_continue_in_new_process(log: EventLog) -> None:
    log.append(PhaseChanged(name="loading"))
    EventLog(log.path).append(PhaseChanged(name="training"))

    events, _offset = log.read()
    assert [event.seq for event in events] == [1, 2]


def test_partial_line_is_not_read_until_complete(log: EventLog) -> None:
    log.append(PhaseChanged(name="loading"))
    with log.path.open("a") as file:
        file.write('{"kind": "pha')
    events, offset = log.read()

    assert [event.kind for event in events] == ["phase"]
    assert log.read(offset) == ([], offset)


def test_partial_line_of_killed_writer_does_not_corrupt_others(log: EventLog) -> None:
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


def test_invalid_line_is_skipped(log: EventLog) -> None:
    log.path.write_text('\x00\x00 not json\n{"kind": "no such kind"}\n')
    log.append(PhaseChanged(name="loading"))

    events, _offset = log.read()
    assert [event.kind for event in events] == ["phase"]


def test_nan_and_infinity_round_trip(log: EventLog) -> None:
    numbers = {"loss": math.nan, "grad_norm": math.inf}
    log.append(MetricsLogged(step=1, epoch=0.1, tokens=8, seconds=1, metrics=numbers))

    events, _offset = log.read()
    assert isinstance(events[0], MetricsLogged)
    assert math.isnan(events[0].metrics["loss"])
    assert events[0].metrics["grad_norm"] == math.inf


def test_reading_in_two_parts_gives_same_events(log: EventLog) -> None:
    for step in range(1, 6):
        log.append(PhaseChanged(name=f"phase {step}"))
    whole = log.path.read_bytes()

    def read_in_two(cut: int) -> list[int]:
        log.path.write_bytes(whole[:cut])
        first, offset = log.read()
        log.path.write_bytes(whole)
        return [event.seq for event in first + log.read(offset)[0]]

    assert {tuple(read_in_two(cut)) for cut in range(len(whole) + 1)} == {(1, 2, 3, 4, 5)}
