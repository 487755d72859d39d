"""Which linear layers belong to attention, by the names that families give them."""

import pytest

from studio.weights.adapter_targets import AdapterTargets, LinearLayer


@pytest.mark.parametrize(
    ("path", "is_attention"),
    [
        ("model.layers.0.self_attn.q_proj", True),
        ("model.layers.0.mlp.down_proj", False),
        ("transformer.h.0.attn.c_proj", True),
        ("encoder.block.0.layer.0.SelfAttention.q", True),
        ("decoder.block.0.layer.1.EncDecAttention.o", True),
        ("decoder.block.0.layer.2.DenseReluDense.wo", False),
    ],
)
def test_attention_is_told_by_the_name_of_its_module(path: str, *, is_attention: bool) -> None:
    layer = LinearLayer(path)

    assert AdapterTargets(group="attention").covers(layer) == is_attention
    assert AdapterTargets(group="mlp").covers(layer) != is_attention
