"""A runner that plays a run with checkpoints: `python tests/fakes/remote_runner.py PART RUN_DIR`.

It reads what its job names, resumes from its newest checkpoint, and writes on until its last step.
With the part `wait`, it waits before each step for a file `go-<step>` in the folder of that name in
FAKE_SIGNALS. FAKE_CLOCK is how many seconds its clock is ahead.
"""

import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

from studio.protocols.events import (
    Checkpointed,
    Event,
    Finished,
    MetricsLogged,
    Paused,
    Resumed,
    Started,
    Stopped,
)
from studio.protocols.run_dir import JobSpec, RunDir
from studio.runner.execution import lock_run

STEPS = 6
CHECKPOINT_EVERY = 2


class Part:
    def __init__(self, name: str, run: RunDir) -> None:
        self.name, self.run, self.step = name, run, 0
        self.ahead = timedelta(seconds=float(os.environ.get("FAKE_CLOCK", "0")))

    def say(self, event: Event) -> None:
        now = datetime.now(UTC) + self.ahead
        self.run.events.append(event.model_copy(update={"at": now}))

    def save(self) -> None:
        folder = self.run.checkpoints / f"checkpoint-{self.step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_bytes(bytes([self.step]) * 300_000)
        self.say(Checkpointed(step=self.step, bytes=300_000, seconds=0))

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        match self.run.command.read_text(encoding="ascii"):
            case "pause":
                self.save()
                self.say(Paused(step=self.step))
            case _:
                self.say(Stopped(step=self.step))
        sys.exit(0)

    def resume(self) -> None:
        steps = [int(path.name[11:]) for path in self.run.checkpoints.glob("checkpoint-*")]
        self.step = max(steps, default=0)
        if self.step:
            weights = self.run.checkpoints / f"checkpoint-{self.step}" / "weights"
            assert weights.read_bytes() == bytes([self.step]) * 300_000

    def play(self) -> int:
        job = JobSpec.read(self.run)
        assert (Path(job.model) / "config.json").is_file()
        assert job.train.is_file()
        signal.signal(signal.SIGTERM, self.stop)
        if job.resume:
            self.resume()
        self.say(Started(total_steps=STEPS, resolved={"weights": "float32"}))
        if job.attempt > 1:
            self.say(Resumed(step=self.step, attempt=job.attempt))
        while self.step < STEPS:
            if self.name == "wait":
                self.wait_for(self.step + 1)
            self.step += 1
            sys.stdout.write(f"step {self.step}\n")
            sys.stdout.flush()
            loss = 3.0 - self.step / 10
            self.say(
                MetricsLogged(
                    step=self.step,
                    epoch=self.step / STEPS,
                    tokens=self.step * 64,
                    seconds=self.step / 10,
                    metrics={"loss": loss},
                )
            )
            if self.step % CHECKPOINT_EVERY == 0:
                self.save()
        self.run.artifacts.mkdir(exist_ok=True)
        (self.run.artifacts / "README.md").write_text("# A card\n", encoding="utf-8")
        (self.run.artifacts / "attempt").write_text(str(job.attempt), encoding="ascii")
        (self.run.artifacts / "weights.bin").write_bytes(b"w" * 2_500_000)
        self.say(Finished(metrics={"loss": 2.4}))
        return 0

    def wait_for(self, step: int) -> None:
        while not (Path(os.environ["FAKE_SIGNALS"]) / f"go-{step}").exists():
            time.sleep(0.01)


if __name__ == "__main__":
    folder = RunDir(Path(sys.argv[2]))
    with lock_run(folder):
        sys.exit(Part(sys.argv[1], folder).play())
