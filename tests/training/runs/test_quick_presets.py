"""The quick start of each method on the included samples: the starter model learns, measurably."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from studio.methods import METHODS
from studio.protocols.events import Finished
from studio.protocols.run_dir import JobSpec
from studio.recipe.dotted_keys import flatten
from studio.runner.execution import execute_run
from studio.starter import samples
from studio.starter.samples import SampleName
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Row = dict[str, Any]
STEPS = 150
"""About a third of what fits into a minute on two cores."""


def turn(role: str, content: str) -> list[Row]:
    return [{"role": role, "content": content}]


def comparison(row: Row) -> Row:
    return {
        "messages": turn("user", row["prompt"]),
        "chosen": turn("assistant", row["chosen"]),
        "rejected": turn("assistant", row["rejected"]),
    }


def rating(row: Row) -> Row:
    messages = turn("user", row["prompt"]) + turn("assistant", row["completion"])
    return {"messages": messages, "label": row["label"]}


@pytest.mark.parametrize(
    ("method", "sample", "as_row", "least"),
    [
        ("dpo", "comparisons", comparison, 0.8),
        ("kto", "ratings", rating, 0.15),
    ],
)
def test_quick_start_learns(
    method: str,
    sample: SampleName,
    as_row: Callable[[Row], Row],
    least: float,
    starter_model: Path,
    tmp_path: Path,
) -> None:
    """The best validation value of the objective: a share for dpo, nats for kto."""
    preset = next(one for one in METHODS[method].presets if one.name == "quick")
    changes = {name.replace(".", "__"): value for name, value in flatten(preset.values).items()}
    run = tiny.write_run(
        tmp_path / "run",
        starter_model,
        **changes
        | ({"samples__max_new_tokens": 1} if METHODS[method].recipe.outputs != "text" else {})
        | {"method": method, "adapter__kind": "lora", "data__validation_share": 0.1}
        | {"optimisation__max_steps": STEPS, "optimisation__max_minutes": None},
    )
    samples.write(sample, tmp_path / "sample.jsonl")
    lines = (tmp_path / "sample.jsonl").read_text(encoding="utf-8").splitlines()
    spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
    tiny.write_rows(spec.train, [as_row(json.loads(line)) for line in lines])
    execute_run(run.root, StopHandler())

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    values = tiny.metric_values(run, METHODS[method].objective.key)
    assert values[-1] > least, values
