"""From submitting a run to its first step: warm, cold, and a bare TRL script from a shell.

All three train the starter model on the starter rows, turn and turn about, each first step in a
process of its own. Other work on the machine disturbs all alike, so the ratios are what counts.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from studio.protocols.run_dir import RunDir
from studio.settings import Settings
from studio.worker.processes import process
from tests.bench.measurement import Measurement
from tests.support.live_studio import (
    Studio,
    free_port,
    get_run,
    launcher_process,
    prepare,
    stop_everything,
)
from tests.support.waiting import wait_until

ROUNDS = 7
PACES = 3
BETWEEN = (20, 120)
"""Steps between which a pace is measured: the machine is warm, and a look at numerics within."""

BATCH = 8
"""A recipe's default. What a larger first step computes would be measured thrice."""

RECIPE: dict[str, Any] = {
    "base_model": "starter",
    "dataset": "starter",
    "precision": "bf16",
    "optimisation": {
        "max_steps": 1000,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 3e-3,
    },
    "adapter": {"kind": "full"},
    "data": {"max_length": 256},
    "samples": {"prompts": 0},
}
"""What the bare script trains, too."""

PARTS = ("queued", "forked", "loading", "tokenising and building", "auditing", "first step")


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder:
        homes = [Settings(home=Path(folder) / name) for name in ("warm", "cold")]
        for settings in homes:
            settings.home.mkdir()
            prepare(settings)
        warm, cold = (Studio(one.home, free_port(), warm=one is homes[0]) for one in homes)
        try:
            warm.start()
            cold.start()
            yield Measurement("memory of the idle launcher (PSS)", _idle_memory(warm) / 1e6, "MB")
            yield from _compare(warm, cold)
            yield from _overhead(warm)
        finally:
            stop_everything(warm)
            stop_everything(cold)


def _idle_memory(studio: Studio) -> int:
    memory: int = launcher_process(studio).memory_full_info().pss
    return memory


def _compare(warm: Studio, cold: Studio) -> Iterator[Measurement]:
    parts: list[list[float]] = []
    whole: dict[str, list[float]] = {"warm": [], "cold": [], "bare TRL": []}
    for _ in range(ROUNDS):
        parts.append(_first_step(warm))
        whole["warm"].append(sum(parts[-1]))
        whole["cold"].append(sum(_first_step(cold)))
        whole["bare TRL"].append(_bare(cold.home))
    for name, seconds in whole.items():
        yield Measurement(f"submit to first step, {name}", statistics.median(seconds), "s")
        yield Measurement(f"  slowest of {ROUNDS}", max(seconds), "s")
    for name in ("cold", "bare TRL"):
        ratios = [one / other for one, other in zip(whole[name], whole["warm"], strict=True)]
        yield Measurement(f"{name} over warm", statistics.median(ratios), "x")
    for i, name in enumerate(PARTS):
        middle = statistics.median(round_[i] for round_ in parts)
        yield Measurement(f"  of the warm start: {name}", middle, "s")


def _first_step(studio: Studio) -> list[float]:
    """Train, and return how long each part took up to the end of the first step."""
    answer = studio.api.post("/runs", json={"name": "bench", "recipe": RECIPE}).raise_for_status()
    number = answer.json()["id"]
    log = studio.home / "runs" / str(number) / "events.jsonl"
    wait_until(lambda: log.exists() and '"progressed"' in log.read_text(), seconds=300)
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    wait_until(lambda: get_run(studio, number)["finished_at"], seconds=300)
    run, events = get_run(studio, number), list(map(json.loads, log.read_text().splitlines()))
    created = datetime.fromisoformat(run["created_at"])
    moments = [created, created + timedelta(seconds=run["phases"]["queued_seconds"])]
    moments += [_at(events, name=phase) for phase in ("loading", "tokenising", "training")]
    moments += [_at(events, kind=kind) for kind in ("started", "progressed")]
    return [(later - sooner).total_seconds() for sooner, later in pairwise(moments)]


def _at(events: list[dict[str, Any]], **said: str) -> datetime:
    """Return the moment of the first event that says so."""
    return next(datetime.fromisoformat(one["at"]) for one in events if said.items() <= one.items())


def _bare(home: Path) -> float:
    began = time.time()
    done = subprocess.run(_script(home, 2), capture_output=True, text=True, check=True)
    first = next(line for line in done.stdout.splitlines() if line.startswith('{"at"'))
    return float(json.loads(first)["at"]) - began


def _script(home: Path, steps: int) -> list[str]:
    rows = next((home / "datasets").rglob("train.jsonl"))
    model = str(home / "models" / "starter")
    command = [sys.executable, "-m", "tests.bench.trl_baseline", "sft", model]
    return [*command, str(rows), str(steps), "bf16", str(BATCH)]


def _overhead(studio: Studio) -> Iterator[Measurement]:
    """Compare a step of ours with the script's: by the clock, and by CPUs' own time.

    Every process that ours needs is counted by the clock, for it takes its share of the cores; of
    CPUs' time, what the training process spends.
    """
    pairs = [(our_pace(studio), _bare_pace(studio.home)) for _ in range(PACES)]
    for i, name in enumerate(("clock", "processor time")):
        for k, whose in enumerate(("ours", "bare TRL")):
            middle = statistics.median(pair[k][i] for pair in pairs)
            yield Measurement(f"a step by the {name}, {whose}", middle * 1000, "ms")
        ratios = [ours[i] / bare[i] for ours, bare in pairs]
        yield Measurement("  ours over bare TRL, median of rounds", statistics.median(ratios), "x")


def our_pace(studio: Studio, tracker: str = "") -> tuple[float, float]:
    """Return the seconds of a step of ours, by the clock and by CPUs; a tracker gets each."""
    # Every step is told, as the script does, and as weighs most on the studio.
    recipe = RECIPE | {"evaluation": {"logging_steps": 1, "eval_steps": 1000}}
    answer = studio.api.post("/runs", json={"name": "pace", "recipe": recipe}).raise_for_status()
    number = answer.json()["id"]
    if tracker:
        sent = studio.api.post(f"/runs/{number}/trackers", json={"tracker": tracker})
        sent.raise_for_status()
    folder = RunDir(studio.home / "runs" / str(number))
    wait_until(lambda: process.find_training_process(folder) is not None, seconds=300)
    trainer = process.find_training_process(folder)
    assert trainer is not None
    pace = _pace(psutil.Process(trainer.pid), folder.events.path, b'"step_seconds"')
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    wait_until(lambda: get_run(studio, number)["finished_at"], seconds=300)
    return pace


def _bare_pace(home: Path) -> tuple[float, float]:
    said = home / "bare.jsonl"
    with said.open("wb") as log, (home / "bare.log").open("wb") as complaints:
        # In the environment that the studio gives its own: as many threads, as polite ones.
        child = subprocess.Popen(
            _script(home, 10 * BETWEEN[1]),
            stdout=log,
            stderr=complaints,
            env=process.environment(None),
        )
        try:
            return _pace(psutil.Process(child.pid), said, b'"at"')
        finally:
            child.kill()
            child.wait()


def _pace(trainer: psutil.Process, told: Path, mark: bytes) -> tuple[float, float]:
    """Return the seconds of a step, by the clock and by CPUs, of those in BETWEEN."""
    marks: list[tuple[int, float, float]] = []
    for step in BETWEEN:
        wait_until(partial(_has_told, told, mark, step), seconds=300)
        spent = trainer.cpu_times()
        count = told.read_bytes().count(mark)
        marks.append((count, time.monotonic(), spent.user + spent.system))
    (first, began, used), (last, ended, used_later) = marks
    return (ended - began) / (last - first), (used_later - used) / (last - first)


def _has_told(told: Path, mark: bytes, step: int) -> bool:
    return told.exists() and told.read_bytes().count(mark) >= step


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
