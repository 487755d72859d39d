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
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studio.settings import Settings
from tests.bench.figures import Figure
from tests.living import (
    Studio,
    free_port,
    launcher_of,
    prepare,
    run_of,
    stop_everything,
)
from tests.patience import until

ROUNDS = 7
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


def measure() -> Iterator[Figure]:
    with TemporaryDirectory() as folder:
        homes = [Settings(home=Path(folder) / name) for name in ("warm", "cold")]
        for settings in homes:
            settings.home.mkdir()
            prepare(settings)
        warm, cold = (Studio(one.home, free_port(), warm=one is homes[0]) for one in homes)
        try:
            warm.start()
            cold.start()
            yield Figure("memory of the idle launcher (PSS)", _idle_memory(warm) / 1e6, "MB")
            yield from _compare(warm, cold)
        finally:
            stop_everything(warm)
            stop_everything(cold)


def _idle_memory(studio: Studio) -> int:
    memory: int = launcher_of(studio).memory_full_info().pss
    return memory


def _compare(warm: Studio, cold: Studio) -> Iterator[Figure]:
    parts: list[list[float]] = []
    whole: dict[str, list[float]] = {"warm": [], "cold": [], "bare TRL": []}
    for _ in range(ROUNDS):
        parts.append(_first_step(warm))
        whole["warm"].append(sum(parts[-1]))
        whole["cold"].append(sum(_first_step(cold)))
        whole["bare TRL"].append(_bare(cold.home))
    for name, seconds in whole.items():
        yield Figure(f"submit to first step, {name}", statistics.median(seconds), "s")
        yield Figure(f"  slowest of {ROUNDS}", max(seconds), "s")
    for name in ("cold", "bare TRL"):
        ratios = [one / other for one, other in zip(whole[name], whole["warm"], strict=True)]
        yield Figure(f"{name} over warm", statistics.median(ratios), "x")
    for i, name in enumerate(PARTS):
        middle = statistics.median(round_[i] for round_ in parts)
        yield Figure(f"  of the warm start: {name}", middle, "s")


def _first_step(studio: Studio) -> list[float]:
    """Train, and return how long each part took up to the end of the first step."""
    answer = studio.api.post("/runs", json={"name": "bench", "recipe": RECIPE}).raise_for_status()
    number = answer.json()["id"]
    log = studio.home / "runs" / str(number) / "events.jsonl"
    until(lambda: log.exists() and '"progressed"' in log.read_text(), seconds=300)
    studio.api.post(f"/runs/{number}/cancel").raise_for_status()
    until(lambda: run_of(studio, number)["finished_at"], seconds=300)
    run, events = run_of(studio, number), list(map(json.loads, log.read_text().splitlines()))
    created = datetime.fromisoformat(run["created_at"])
    moments = [created, created + timedelta(seconds=run["phases"]["queued_seconds"])]
    moments += [_at(events, name=phase) for phase in ("loading", "tokenising", "training")]
    moments += [_at(events, kind=kind) for kind in ("started", "progressed")]
    return [(later - sooner).total_seconds() for sooner, later in pairwise(moments)]


def _at(events: list[dict[str, Any]], **said: str) -> datetime:
    """Return the moment of the first event that says so."""
    return next(datetime.fromisoformat(one["at"]) for one in events if said.items() <= one.items())


def _bare(home: Path) -> float:
    rows = next((home / "datasets").glob("*/train.jsonl"))
    command = [sys.executable, "-m", "tests.bench.bare", str(home / "models" / "starter")]
    began = time.time()
    done = subprocess.run(
        [*command, str(rows), "2", "bf16", str(BATCH)], capture_output=True, text=True, check=True
    )
    first = next(line for line in done.stdout.splitlines() if line.startswith('{"at"'))
    return float(json.loads(first)["at"]) - began


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
