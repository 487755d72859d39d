"""Supervised fine-tuning on a GPU, in each precision. Needs no package of the web side."""

from pathlib import Path

import pytest
import torch

from studio.events import Finished, Started
from studio.recipe.precision import PRECISIONS
from tests.training import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_a_mode_is_real_on_the_gpu(name: str, adapter: str, tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())

    run = tiny.train(
        tmp_path / "run", model, precision=name, adapter__kind=adapter, samples__prompts=2
    )

    assert isinstance(tiny.last(run), Finished), (run.root / "events.jsonl").read_text()
    resolved, mode = tiny.said(run, Started)[0].resolved, PRECISIONS[name]  # type: ignore[index] # a key of it
    found = [resolved[key] for key in ("device", "weights", "compute", "gradients", "scaler")]
    assert found == ["cuda", mode.weights, mode.compute, mode.gradients, mode.scaler]
    losses = tiny.series(run, "loss")
    assert losses[-1] < losses[0]
