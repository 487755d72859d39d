"""Each method on a GPU: the starter model learns the sample data with and without an adapter."""

from itertools import product
from pathlib import Path

import pytest
import torch

from studio import starter
from studio.methods import METHODS
from studio.protocols.events import Started
from studio.recipe.precision import PRECISIONS, PrecisionName
from tests.bench import learning
from tests.bench.learning import LESSONS, Lesson
from tests.training import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),
]


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
    run = learning.train(tmp_path / "run", model, lesson, adapter, name, seed=1)

    resolved, mode = tiny.events_of(run, Started)[0].resolved, PRECISIONS[name]
    found = [resolved[key] for key in ("device", "weights", "compute", "gradients", "scaler")]
    assert found == ["cuda", mode.weights, mode.compute, mode.gradients, mode.scaler]
    before, after = learning.objectives(run, lesson)
    assert after > before if METHODS[lesson.method].objective.better == "higher" else after < before
