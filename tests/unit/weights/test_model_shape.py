"""What a stranger's config may say of a model's widths."""

from typing import Any

import pytest

from studio.weights.model_config import read

TOLD: dict[str, Any] = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
}


def test_config_gives_attention_widths() -> None:
    shape = read(TOLD)

    assert shape is not None
    assert (shape.query_width, shape.key_width, shape.head_size) == (512, 128, 64)


def test_head_dim_can_make_heads_wider_than_model() -> None:
    shape = read(TOLD | {"head_dim": 128})

    assert shape is not None
    assert (shape.query_width, shape.key_width) == (1024, 256)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 0),
        ("vocab_size", 10**10),
        ("hidden_size", -64),
        ("hidden_size", "512"),
        ("hidden_size", 512.5),
        ("intermediate_size", None),
        ("num_attention_heads", True),
        ("num_key_value_heads", 9),
        ("head_dim", 2**40),
    ],
)
def test_impossible_shape_values_give_no_shape(name: str, value: object) -> None:
    assert read(TOLD | {name: value}) is None


def test_empty_config_has_no_shape() -> None:
    assert read({}) is None
