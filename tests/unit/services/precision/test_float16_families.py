"""Families that overflow in float16 are refused there, with what to use instead."""

from studio.services.precision.incompatibilities import check
from studio.weights.model_facts import ModelFacts
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_quantised import HERE

T5 = ModelFacts(family="t5", kind="encoder_decoder", parameters=1000, stored={"float32": 1.0})


def test_t5_is_refused_in_float16_but_not_in_bfloat16() -> None:
    half, brain = (
        check(make_recipe(method="seq2seq", base_model="t5", precision=precision), T5, HERE)
        for precision in ("fp16", "bf16")
    )

    (refusal,) = half
    assert refusal.message.startswith("t5 models do not train in float16: its feed-forward layers")
    assert set(refusal.repair) == {"precision"}
    assert brain == []
