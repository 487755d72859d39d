"""Where a run's numbers broke."""

import math
from pathlib import Path

from sqlmodel import Session

from studio.protocols.events import AlarmRaised
from studio.services.runs import attempts, nonfinite_steps
from tests.support.factories import make_running, metrics_event


def test_step_details_include_module_and_log_line(db: Session, tmp_path: Path) -> None:
    run = make_running(db)
    alarm = AlarmRaised(code="x", message="m", step=2, module="layers.3")
    told = [metrics_event(2, loss=math.nan), metrics_event(3, loss=math.inf, grad_norm=1.0)]
    attempts.apply_events(db, run, [*told, alarm], 1)
    log = tmp_path / "log.txt"
    log.write_text("".join(f"step {step}/9  loss 1\n" for step in range(1, 40)))
    found = nonfinite_steps.inspect_step(db, run.id or 0, 3, log)

    assert (found.values, found.steps) == ({"loss": "inf"}, [2, 3])
    assert [one.data["module"] for one in found.alarms] == ["layers.3"]
    assert [line.text for line in found.lines if line.is_match] == ["step 3/9  loss 1"]
    assert (found.lines[0].number, found.lines[-1].number) == (1, 15)


def test_step_without_log_has_no_lines(db: Session, tmp_path: Path) -> None:
    run = make_running(db)

    assert nonfinite_steps.inspect_step(db, run.id or 0, 3, tmp_path / "none").lines == []
