"""A worker for a studio elsewhere whose runs are played: `python remote_worker.py URL PART`."""

import os
import signal
import sys
import threading
from pathlib import Path

from studio.settings import Settings
from studio.worker.processes.launcher import LocalLauncher
from studio.worker.remote.connection import StudioConnection
from studio.worker.remote.remote_loop import RemoteLoop, worker_name

RUNNER = str(Path(__file__).with_name("remote_runner.py"))


def main(url: str, part: str) -> None:
    settings, stop = Settings(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    launcher = LocalLauncher(command=(sys.executable, RUNNER, part), wanted_slots=1)
    settings.home.mkdir(exist_ok=True)
    connection = StudioConnection.open(worker_name(settings), url, os.environ["STUDIO_TOKEN"])
    RemoteLoop(settings, connection, launcher).run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
