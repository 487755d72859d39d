"""What trackers hold of a run: `python -m tests.support.tracker_readers TRACKER HOME`, as JSON.

In a process of its own: their packages warn when they are imported, and tests take warnings for
errors. Each is read with its own reader, but Weights & Biases, which has none for files.
"""

import csv
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
"""Files of Weights & Biases are logs as of LevelDB: blocks, and records with headers."""

Losses = list[tuple[int, float]]


def read_csv(folder: Path) -> Losses:
    (path,) = folder.glob("*/*/metrics.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "loss"]
    return [(int(row["step"]), float(row["value"])) for row in rows]


def read_tensorboard(folder: Path) -> Losses:
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415 -- optional dependency
        EventAccumulator,
    )

    (run,) = folder.glob("*/*")
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


def read_mlflow(folder: Path) -> Losses:
    from mlflow import MlflowClient  # noqa: PLC0415 -- optional dependency

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    history = client.get_metric_history(run.info.run_id, "loss")
    return [(metric.step, metric.value) for metric in history]


def read_trackio(folder: Path) -> Losses:
    (path,) = folder.glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    values = [(step, json.loads(metrics)) for step, metrics in rows]
    return [(step, one["loss"]) for step, one in values if "loss" in one]


def read_wandb(folder: Path) -> Losses:
    losses: Losses = []
    for path in sorted(folder.glob("*/*/wandb/offline-run-*/*.wandb")):
        for values in wandb_history(path):
            if "loss" in values:
                losses.append((int(values["_step"]), float(values["loss"])))
    return losses


def wandb_history(path: Path) -> Iterator[dict[str, Any]]:
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415 -- optional dependency

    for content in log_records(path.read_bytes()):
        record = Record.FromString(content)
        if record.HasField("history"):
            items = record.history.item
            yield {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def log_records(content: bytes) -> Iterator[bytes]:
    place, parts = HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        size = int.from_bytes(content[place + 4 : place + 6], "little")
        kind = content[place + 6]
        if kind == 0:
            return
        parts += content[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in {1, 4}:
            yield parts
            parts = b""


READERS: dict[str, Callable[[Path], Losses]] = {
    "csv": read_csv,
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
    "wandb": read_wandb,
}

if __name__ == "__main__":
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    found = READERS[sys.argv[1]](Path(sys.argv[2]) / "trackers" / sys.argv[1])
    sys.stdout.write(json.dumps(sorted(found)))
