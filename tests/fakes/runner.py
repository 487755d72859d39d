"""A runner that plays a part instead of training: `python tests/fakes/runner.py PART RUN_DIR`.

It writes real events to a real run folder, so worker, database and pages see what they always see.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Literal

from studio.protocols.events import (
    EventLog,
    Failed,
    Finished,
    MetricsLogged,
    Paused,
    Sampled,
    Started,
    Stopped,
)
from studio.protocols.run_dir import RunDir
from studio.runner.execution import lock_run

STEPS = 5
STAGES: tuple[Literal["before", "after"], ...] = ("before", "after")


def main(part: str, run: RunDir) -> int:
    log = run.events
    _announce(part, run, log)
    _end_badly(part, run)
    if part == "exit":
        return 3
    if part == "fail":
        log.append(Failed(code="out_of_memory", message="It did not fit.", hint="Lower the batch."))
        return 1
    for step in range(1, STEPS + 1):
        log.append(_step(step))
        if part in {"wait", "linger"}:
            _wait_for(run.root / f"go-{step}")
    return _finish(run, log)


def _announce(part: str, run: RunDir, log: EventLog) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        match run.command.read_text(encoding="ascii"):
            case "pause":
                log.append(Paused(step=0))
                if part == "linger":
                    time.sleep(1)  # as a process does that has much to let go of
            case "keep":
                log.append(Stopped(step=0, kept=True))
            case _:
                log.append(Stopped(step=0))
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write("loading the model\n")
    sys.stdout.flush()
    log.append(Started(total_steps=STEPS, resolved={"weights": "float32", "compute": "bfloat16"}))


def _step(step: int) -> MetricsLogged:
    sys.stdout.write(f"step {step}\n")
    sys.stdout.flush()
    metrics = {"loss": 3.0 - step / 10, "grad_norm": float("nan") if step == STEPS else 1.0}
    return MetricsLogged(
        step=step, epoch=step / STEPS, tokens=step * 64, seconds=step / 10, metrics=metrics
    )


def _finish(run: RunDir, log: EventLog) -> int:
    for stage in STAGES:
        log.append(
            Sampled(
                stage=stage, step=STEPS, position=0, prompt="Hi", reference="Hello.", answer=stage
            )
        )
    run.artifacts.mkdir(exist_ok=True)
    (run.artifacts / "README.md").write_text("# A card\n", encoding="utf-8")
    log.append(Finished(metrics={"loss": 2.5, "eval_loss": 2.6}))
    return 0


def _end_badly(part: str, run: RunDir) -> None:
    if part == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if part == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if part == "eat":
        _eat()
    if part == "fill":
        _fill(run.root / "big")


def _eat() -> None:
    hoard = []
    while True:
        hoard.append(b"x" * 2**24)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 2**16)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    folder = RunDir(Path(sys.argv[2]))
    with lock_run(folder):
        sys.exit(main(sys.argv[1], folder))
