"""What is known of encoders before one is loaded."""

from typing import Any

import pytest

from studio.weights import encoders
from studio.weights.architectures import FAMILY_KINDS


def test_all_are_encoders() -> None:
    assert {FAMILY_KINDS[family] for family in encoders.ENCODERS} == {"encoder"}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514}, 512),
        ({"model_type": "modernbert", "max_position_embeddings": 8192}, None),
        (
            {
                "model_type": "deberta-v2",
                "max_position_embeddings": 512,
                "position_biased_input": False,
            },
            None,
        ),
        ({"model_type": "llama", "max_position_embeddings": 2048}, None),
        ({"model_type": "bert", "is_decoder": True, "max_position_embeddings": 512}, None),
        ({"model_type": "bert", "max_position_embeddings": "many"}, None),
    ],
)
def test_table_of_positions_limits_a_text(config: dict[str, Any], limit: int | None) -> None:
    assert encoders.max_tokens(config) == limit
