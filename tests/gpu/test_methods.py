"""Each method on a GPU: the starter model learns the sample data with and without an adapter."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch

from studio import starter
from studio.methods import METHODS
from studio.protocols.events import Finished, Started
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.starter.samples import SampleName
from tests.support import sample_rows
from tests.training import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),
]


@dataclass(frozen=True, slots=True)
class Lesson:
    method: str
    sample: SampleName
    adapter_rate: float
    full_rate: float


LESSONS = (
    Lesson("dpo", "comparisons", 3e-3, 1e-4),
    Lesson("kto", "ratings", 2e-3, 3e-4),
    Lesson("reward", "comparisons", 3e-3, 1e-3),
    Lesson("classify", "labels", 1e-3, 3e-4),
    Lesson("regress", "numbers", 1e-3, 3e-4),
    Lesson("tokens", "entities", 1e-3, 3e-4),
)
MODES: tuple[PrecisionName, ...] = ("fp32", "bf16", "fp16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starter")
    starter.write_model(folder)
    return folder


@pytest.mark.parametrize(
    ("lesson", "adapter", "name"),
    list(product(LESSONS, ("lora", "full"), MODES)),
    ids=lambda one: one.method if isinstance(one, Lesson) else one,
)
def test_method_learns_in_its_number_format(
    lesson: Lesson, adapter: str, name: PrecisionName, model: Path, tmp_path: Path
) -> None:
    objective, mode = METHODS[lesson.method].objective, PRECISIONS[name]
    run = tiny.train(
        tmp_path / "run",
        model,
        sample_rows.imported(lesson.sample),
        method=lesson.method,
        precision=name,
        adapter__kind=adapter,
        samples__max_new_tokens=1,
        data__max_length=256,
        evaluation__eval_steps=0.25,
        evaluation__per_device_eval_batch_size=64,
        optimisation__max_steps=150,
        optimisation__per_device_train_batch_size=16,
        optimisation__learning_rate=lesson.adapter_rate if adapter == "lora" else lesson.full_rate,
    )

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    resolved = tiny.events_of(run, Started)[0].resolved
    found = [resolved[key] for key in ("device", "weights", "compute", "gradients", "scaler")]
    assert found == ["cuda", mode.weights, mode.compute, mode.gradients, mode.scaler]
    before, *after = tiny.metric_values(run, objective.key)
    assert max(after) > before if objective.better == "higher" else min(after) < before
