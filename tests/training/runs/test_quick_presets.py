"""The quick start of each method on the included samples: the starter model learns, measurably."""

from pathlib import Path

import pytest

from studio.methods import METHODS
from studio.protocols.events import Finished
from studio.recipe.dotted_keys import flatten
from studio.runner.execution import execute_run
from studio.starter.samples import SampleName
from studio.training.stop_handler import StopHandler
from tests.support import sample_rows
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS = 150
"""About a third of what fits into a minute on two cores."""


@pytest.mark.parametrize(
    ("method", "sample", "least"),
    [
        ("dpo", "comparisons", 0.8),
        ("kto", "ratings", 0.15),
        ("reward", "comparisons", 0.55),
        ("classify", "labels", 0.8),
        ("regress", "numbers", 0.4),
        ("tokens", "entities", 0.9),
    ],
)
def test_quick_start_learns(
    method: str,
    sample: SampleName,
    least: float,
    starter_model: Path,
    tmp_path: Path,
) -> None:
    """The validation value of the objective at the end: a share, but nats for kto."""
    preset = next(one for one in METHODS[method].presets if one.name == "quick")
    changes = {name.replace(".", "__"): value for name, value in flatten(preset.values).items()}
    run = tiny.write_run(
        tmp_path / "run",
        starter_model,
        sample_rows.imported(sample),
        **{"adapter__kind": "lora", **changes}
        | ({"samples__max_new_tokens": 1} if METHODS[method].recipe.outputs != "text" else {})
        | {"method": method, "data__validation_share": 0.2}
        | {"optimisation__max_steps": STEPS, "optimisation__max_minutes": None},
    )
    execute_run(run.root, StopHandler())

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    values = tiny.metric_values(run, METHODS[method].objective.key)
    assert values[-1] > least, values
