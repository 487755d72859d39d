"""The number format that an answer was computed in: measured, and told with the answer."""

from pathlib import Path
from typing import Any

import pytest

from studio.protocols.events import Finished, Sampled
from studio.protocols.inference_service import GenerationRequest
from studio.runner.inference.generation import generate
from studio.runner.inference.model_cache import ModelCache
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("knobs", "computed_in"),
    [
        # The weights are float32, and answers are computed without autocast.
        ({"precision": "bf16"}, "float32"),
        ({"precision": "bf16_pure"}, "bfloat16"),
        ({"precision": "bf16", "adapter__kind": "lora", "adapter__base_dtype": "nf4"}, None),
    ],
    ids=["mixed", "pure", "nf4"],
)
def test_each_sample_names_its_compute_format(
    model: Path, tmp_path: Path, knobs: dict[str, Any], computed_in: str | None
) -> None:
    run = tiny.train(tmp_path / "run", model, samples__prompts=1, **knobs)

    assert isinstance(tiny.last_event(run), Finished)
    said = tiny.events_of(run, Sampled)
    assert {one.stage for one in said} >= {"before", "after"}
    assert {one.computed_in for one in said} == {computed_in or "bfloat16 (nf4)"}


@pytest.mark.parametrize(
    ("base_dtype", "computed_in"), [("nf4", "float32 (nf4)"), ("native", "float32")]
)
def test_adapter_answers_on_base_in_training_format(
    model: Path, tmp_path: Path, base_dtype: str, computed_in: str
) -> None:
    knobs = {"adapter__kind": "lora", "adapter__base_dtype": base_dtype, "precision": "bf16"}
    run = tiny.train(tmp_path / "run", model, **knobs)
    asked = GenerationRequest(
        model=str(model),
        adapter=str(run.artifacts),
        precision="bf16",
        base_dtype=base_dtype,
        ids=[5, 6, 7],
        stops=[],
        most=2,
        temperature=0.0,
    )

    with ModelCache().model_for(asked) as (voice, tokenizer):
        end = generate(asked, voice, tokenizer, lambda _text: None, lambda: False)

    assert end.computed_in == computed_in
