"""A file of two gigabytes, from being brought to its last check, and the memory that takes.

The web process copies the file and leaves it to a chore, whose process reads, writes and looks
through every row. A limit of 300 MB is promised for it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from studio.db.session import unit_of_work
from studio.protocols.tasks import TaskSpec
from studio.services.datasets import dataset_builds
from studio.services.datasets.pending_datasets import Upload
from studio.services.operations import home
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.bench.measurement import Measurement

GIGABYTES = 2.0
ROW_BYTES = 1000


def measure(gigabytes: float = GIGABYTES) -> Iterator[Measurement]:
    with TemporaryDirectory() as scratch:
        settings = Settings(home=Path(scratch) / "home")
        folder = _asked(settings, round(gigabytes * 10**9) // ROW_BYTES)
        began = time.monotonic()
        command = [sys.executable, "-m", "studio.runner.work_main", "task", str(folder)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _pid, status, used = os.wait4(child.pid, 0)
        took = time.monotonic() - began
        assert status == 0, (folder / "log.txt").read_text()
    what = f"{gigabytes:g} GB of JSON lines, read and looked through: "
    yield Measurement(what + "most memory", used.ru_maxrss * 1024 / 10**6, "MB")
    yield Measurement(what + "seconds", took, "s")


def _asked(settings: Settings, rows: int) -> Path:
    """Bring a file of so many rows. Return the folder of the chore that is to read it."""
    engine = home.open_home(settings)
    path = settings.datasets / ".arrived"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_row(number) for number in range(rows))
    with unit_of_work(engine) as db:
        dataset = dataset_builds.import_file(
            db, settings.datasets, Upload(path=path, filename="large.jsonl")
        )
        chore = dataset_builds.latest_task(db, dataset.id or 0)
        assert chore is not None
        folder = tasks.task_dir(settings.tasks, chore)
        folder.files.mkdir(parents=True)
        spec = TaskSpec(kind=chore.kind, params=chore.params)
        folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    engine.dispose()
    return folder.root


def _row(number: int) -> str:
    asked = f"What is told in part {number}?"
    row = f'{{"prompt": "{asked}", "completion": "It is told in part {number}: '
    return row + "word " * ((ROW_BYTES - len(row) - 3) // 5) + '"}\n'


if __name__ == "__main__":
    for figure in measure(*map(float, sys.argv[1:2])):
        sys.stdout.write(f"{figure}\n")
