"""What is said of stretched positions before a run starts: refusals with repairs."""

from dataclasses import replace

import pytest

from studio.services.precision.incompatibilities import check
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE

YARN = {"rope_type": "yarn", "rope_factor": 4.0}
REPAIR = {"model": {"rope_type": "none"}}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "llama models have no rotary positions that could be stretched."),
        ("by_layer", "llama models have different positions in different layers."),
        ("llama3", "The positions of this model are stretched already (llama3)."),
    ],
)
def test_positions_that_cannot_be_stretched_are_refused(kind: str, message: str) -> None:
    asked = make_recipe(precision="bf16", adapter={"kind": "full"}, model=YARN)
    (refusal,) = check(asked, replace(MODEL, rope=kind), HERE)

    assert (refusal.message, refusal.repair) == (message, REPAIR)
    assert check(asked, replace(MODEL, rope="default"), HERE) == []


@pytest.mark.parametrize("rope_type", ["linear", "dynamic", "yarn", "llama3"])
@pytest.mark.parametrize("kind", ["full", "lora", "oft", "ia3"])
def test_every_kind_of_training_can_stretch_them(kind: str, rope_type: str) -> None:
    model = YARN | {"rope_type": rope_type}
    asked = make_recipe(precision="bf16", adapter={"kind": kind}, model=model)

    assert check(asked, replace(MODEL, rope="default"), HERE) == []
