"""Rows for tests: valid by default, so that a test says only what matters to it."""

import json
from typing import Any

from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Dataset, DatasetVersion, Model, Run, Worker
from studio.hardware import Gpu, Hardware
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.events import MetricsLogged
from studio.recipe.dotted_keys import merge
from studio.services import experiments
from studio.services.runs import attempts, runs, states
from studio.services.workers import workers
from studio.settings import Settings

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {i} and one?"},
            {"role": "assistant", "content": f"{i + 1}."},
        ]
    }
    for i in range(40)
]


def add_starter_data(db: Session, settings: Settings) -> None:
    """Add a model and a data set called `starter`, as a fresh studio has; without weights."""
    folder = settings.models / "starter"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    db.add(Model(name="starter", kind="starter", location=str(folder)))
    db.add(
        Dataset(
            name="starter",
            filename="starter.jsonl",
            format="jsonl",
            bytes=1000,
            sha256="0" * 64,
            version=1,
        )
    )
    db.flush()
    db.add(
        DatasetVersion(
            dataset_id=1,
            number=1,
            kind="conversation",
            mapping={"shape": "messages", "roles": {"messages": ["messages"]}},
            sha256="1" * 64,
            train_rows=len(ROWS),
        )
    )
    db.flush()
    data = settings.datasets / "1" / "1"
    data.mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (data / "train.jsonl").write_text(text, encoding="utf-8")


def make_recipe(**changes: Any) -> AnyRecipe:  # noqa: ANN401 -- any field of a recipe
    values = merge({"base_model": "starter", "dataset": "starter", "precision": "bf16"}, changes)
    return RECIPE_ADAPTER.validate_python(values)


MACHINES = {
    "plain": Hardware(processor="Old CPU", cores=2, memory_bytes=2**33, native_bf16=False),
    "amx": Hardware(processor="New CPU", cores=2, memory_bytes=2**33, native_bf16=True),
    "t4": Hardware(
        processor="Old CPU",
        cores=2,
        memory_bytes=2**33,
        native_bf16=False,
        gpus=(Gpu(index=0, name="Tesla T4", memory_bytes=2**34, capability=(7, 5)),),
        torch="2.13.0+cu130",
    ),
}


def connect_worker(db: Session, machine: str) -> None:
    """Have a worker on another machine be connected."""
    facts = workers.HARDWARE_ADAPTER.dump_python(MACHINES[machine], mode="json")
    workers.heartbeat(db, Worker(name=machine, pid=1, slots=1, hardware=facts))


def make_run(db: Session, name: str = "first try", **changes: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    """Queue a run of a new experiment."""
    return runs.submit(db, experiments.create(db, name, make_recipe(**changes)))


def make_running(db: Session, name: str = "first try", **changes: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    """Make a run that is training."""
    run = make_run(db, name, **changes)
    states.move(db, run, RunStatus.STARTING)
    states.move(db, run, RunStatus.RUNNING)
    run.total_steps = 10
    return run


def make_finished_run(db: Session, name: str = "first try", **changes: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    """Make a run that has succeeded, with a falling loss."""
    run = make_running(db, name, **changes)
    told = [metrics_event(step, loss=3 - step / 10) for step in range(1, 11)]
    attempts.apply_events(db, run, told, 1000)
    states.move(db, run, RunStatus.SUCCEEDED)
    return run


def metrics_event(step: int, **metrics: float) -> MetricsLogged:
    return MetricsLogged(
        step=step, epoch=step / 10, tokens=step * 100, seconds=step * 0.5, metrics=metrics
    )
