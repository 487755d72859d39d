"""The table of runs when there are ten thousand: listed, searched, sorted, grouped."""

import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import insert

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.summaries import MetricSummary
from studio.db.tables import Experiment, Run
from studio.services.operations import home
from studio.settings import Settings
from studio.web.app import create_app, freeze_gc_heap
from tests.bench.measurement import Measurement
from tests.support.factories import add_starter_data, make_recipe

RUNS = 10_000
TIMES = 100
METRICS = (
    *("loss", "eval_loss", "mean_token_accuracy", "eval_mean_token_accuracy", "grad_norm"),
    *("learning_rate", "tokens_per_second", "step_seconds", "train_seconds", "peak_memory_bytes"),
    *("update_ratio", "activation_max", "logit_max", "grad_underflow_share", "lost_update_share"),
)
QUESTIONS = {
    "list": "",
    "words": "q=999",
    "filter by status and tag": "q=status:failed%20tag:good",
    "filter by metric": "q=eval_loss<0.5",
    "filter by recipe key": "q=optimisation.learning_rate>=1e-3",
    "sort by smoothed metric": "sort=eval_loss.smoothed",
    "sort by recipe key": "sort=-learning_rate",
    "page 100 of that": "sort=-learning_rate&after=5000",
    "group by precision": "group=precision",
    "all at once": "q=eval_loss<1.5%20tag:good&sort=loss.mean100&group=learning_rate",
}


def measure() -> Iterator[Measurement]:
    with TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), allowed_hosts="testserver")
        engine = home.open_home(settings)
        fill(engine, settings)
        client = TestClient(create_app(engine, settings))
        freeze_gc_heap()
        for name, query in QUESTIONS.items():
            took = sorted(_seconds(client, f"/?{query}") for _ in range(TIMES))
            what = f"{RUNS:,} runs, page: {name}"
            yield Measurement(f"{what}, p50", statistics.median(took) * 1000, "ms")
            yield Measurement(f"{what}, p99", took[int(0.99 * TIMES) - 1] * 1000, "ms")
        yield Measurement("all of it as CSV", _seconds(client, "/runs.csv") * 1000, "ms")
        engine.dispose()


def fill(engine: Engine, settings: Settings, count: int = RUNS) -> None:
    """Fill a home with runs unlike each other, each summed up in all its metrics."""
    chance = random.Random(7)  # noqa: S311 -- for numbers to look at
    recipes = [_recipe(chance) for _ in range(60)]
    with unit_of_work(engine) as db:
        add_starter_data(db, settings)
        db.add(Experiment(name="many", recipe=recipes[0]))
        db.flush()
        db.exec(insert(Run), params=[_run(i, chance, recipes) for i in range(count)])
        sums = (_sum(i + 1, key, chance) for i in range(count) for key in METRICS)
        db.exec(insert(MetricSummary), params=list(sums))


def _recipe(chance: random.Random) -> Any:  # noqa: ANN401 -- any recipe
    return make_recipe(
        precision=chance.choice(["bf16", "fp32", "fp16"]),
        optimisation={
            "learning_rate": chance.choice([1e-4, 3e-4, 1e-3, 3e-3]),
            "seed": chance.randrange(5),
        },
    )


def _run(i: int, chance: random.Random, recipes: list[Any]) -> dict[str, Any]:
    return {
        "experiment_id": 1,
        "name": f"run {i}",
        "recipe": recipes[i % len(recipes)],
        "status": RunStatus.FAILED if i % 100 == 0 else RunStatus.SUCCEEDED,
        "resolved": {"audit": {f"layer.{k}": "bfloat16" for k in range(40)}},
        "metrics": {"eval_loss": 2.0},
        "tags": ["good"] if i % 10 == 0 else [],
        "notes": "Looked well." if chance.random() < 0.2 else "",
    }


def _sum(run_id: int, key: str, chance: random.Random) -> dict[str, Any]:
    value = chance.uniform(0.2, 3)
    return {
        "run_id": run_id,
        "key": key,
        "count": 200,
        "broken": 0,
        "step": 200,
        "last": value,
        "non_finite": "",
        "least": value - 0.1,
        "greatest": value + 1,
        "smoothed": value + 0.01,
        "mean10": value + 0.02,
        "mean100": value + 0.03,
        "curve": [round(value + 1 / (k + 1), 4) for k in range(48)],
    }


def _seconds(client: TestClient, url: str) -> float:
    began = time.perf_counter()
    assert client.get(url).is_success
    return time.perf_counter() - began


if __name__ == "__main__":
    for figure in measure():
        sys.stdout.write(f"{figure}\n")
        sys.stdout.flush()
