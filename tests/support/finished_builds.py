"""Build a dataset as its task would, in this process."""

import json

from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.runner.tasks.build_dataset import build
from studio.services.datasets import dataset_builds
from studio.services.queue import task_results
from studio.services.tasks import tasks
from studio.settings import Settings


def finish_build(engine: Engine, settings: Settings, dataset_id: int) -> None:
    """Read a dataset's file as its task would, and store the rows."""
    with read_session(engine) as db:
        task = dataset_builds.latest_task(db, dataset_id)
    assert task is not None
    folder = tasks.task_dir(settings.tasks, task)
    folder.files.mkdir(parents=True, exist_ok=True)
    result = build(folder, task.params, lambda _phase, _share: None)
    with unit_of_work(engine) as db:
        found = tasks.get(db, task.id or 0)
        with task_results.notify_on_end(db, found):
            found.result = json.loads(json.dumps(result))
            tasks.close_work(found, TaskStatus.SUCCEEDED)
