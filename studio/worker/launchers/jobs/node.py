"""The job of an attempt: `python -m studio.worker.launchers.jobs.node RUN_DIR ATTEMPT COMMAND…`.

It runs on a machine of the cluster, starts the training process there as the worker does on its
own machine, and tells by the run's folder that it lives and how the attempt ended.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from studio import files
from studio.protocols.run_dir import RunDir
from studio.worker.launchers.jobs.folder import JobFolder, Order, Report
from studio.worker.processes import process
from studio.worker.processes.process import Process

BEAT_SECONDS = 5.0
"""How often it tells that it lives."""

_LOOK_SECONDS = 0.25
"""How often it looks for orders."""

_CLUSTER_SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "SLURM_JWT")
"""Variables that give power over the cluster, which is no business of training processes."""


@dataclass(slots=True)
class NodeJob:
    run: RunDir
    attempt: int
    job: JobFolder
    command: Sequence[str]
    beat: int = 0
    is_asked: bool = False
    """Whether the process was asked to stop."""
    has_signal: bool = False
    """Whether this process has got SIGTERM."""
    last_order: Order = Order.NONE

    def work(self) -> int:
        """Run the attempt. Return its exit code, negative for a signal."""
        signal.signal(signal.SIGTERM, self._note_signal)
        self._tell()
        if self.job.read_order() in {Order.STOP, Order.KILL} or self._is_outdated():
            return self._tell(-signal.SIGTERM)
        for name in _CLUSTER_SECRETS:
            os.environ.pop(name, None)
        if not self.run.command.exists():
            # If the cluster wants the machine back, the run continues from there another time. The
            # studio writes here what it wants itself.
            files.replace_text(self.run.command, "pause")
        child = process.start(self.run, command=self.command, besides=self.job.take_secrets())
        guard = _kill_on_exit(child)
        beat_at = time.monotonic()
        while child.is_alive:
            self._obey(child)
            if time.monotonic() - beat_at > BEAT_SECONDS:
                beat_at = time.monotonic()
                self._tell()
                if self._is_outdated():
                    child.kill()
            _wait(child, _LOOK_SECONDS)
        os.close(guard)  # which also kills what the process has left behind
        return self._tell(child.exit_code)

    def _obey(self, child: Process) -> None:
        order = self.job.read_order()
        if order is Order.KILL:
            child.kill()
        elif (order is Order.STOP or self.has_signal) and not self.is_asked:
            self.is_asked = True
            child.terminate()
        elif order is Order.DUMP and self.last_order is not order:
            child.dump_stacks()
        self.last_order = order

    def _note_signal(self, *_: object) -> None:
        self.has_signal = True

    def _is_outdated(self) -> bool:
        """Whether the studio has given this attempt up and started another one."""
        with suppress(OSError, ValueError, KeyError):
            current: int = json.loads(self.run.job.read_text(encoding="utf-8"))["attempt"]
            return current != self.attempt
        return False

    def _tell(self, exit_code: int | None = None) -> int:
        self.beat += 1
        with suppress(OSError):  # The disk may be full, or away for a while.
            self.job.write_report(Report(self.beat, socket.gethostname(), exit_code))
        return exit_code or 0


def _wait(child: Process, seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        _ = child.child and child.child.wait(seconds)


def _kill_on_exit(child: Process) -> int:
    """Have the process's group killed once the returned descriptor is closed, as by a kill -9."""
    end, lifeline = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.close(lifeline)
        os.read(end, 1)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        os._exit(0)
    os.close(end)
    return lifeline


def main(arguments: Sequence[str]) -> int:
    root, attempt, *command = arguments
    run, job = RunDir(Path(root)), JobFolder.of(Path(root), int(attempt))
    if not job.claim():
        sys.stderr.write(f"Attempt {attempt} has been started before: {root}\n")
        return 0
    with run.log.open("ab") as log:
        os.dup2(log.fileno(), 2)
    code = NodeJob(run, int(attempt), job, command).work()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
