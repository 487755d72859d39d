"""What is said of new tokens before a run starts: refusals with repairs."""

from typing import Any

import pytest

from studio.recipe.model_options import ModelOptions
from studio.services.precision.incompatibilities import check
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE

TOKENS = {"new_tokens": "<tool>, </tool>"}


@pytest.mark.parametrize(
    ("adapter", "message", "repair"),
    [
        ({"kind": "lora"}, "has no place for new tokens", {"model": {"new_tokens": None}}),
        (
            {"kind": "full", "trained_layers": 1},
            "the embeddings are not trained",
            {"model": {"new_tokens": None}},
        ),
    ],
)
def test_tokens_that_would_not_be_trained_are_refused(
    adapter: dict[str, Any], message: str, repair: dict[str, Any]
) -> None:
    (refusal,) = check(make_recipe(precision="bf16", adapter=adapter, model=TOKENS), MODEL, HERE)

    assert message in refusal.message
    assert refusal.repair == repair


def test_trained_embeddings_are_accepted() -> None:
    for adapter in ({"kind": "full"}, {"kind": "full", "trained_layers": 0}):
        extra = {"also_trained": "embeddings"} if "trained_layers" in adapter else {}
        asked = make_recipe(precision="bf16", adapter={**adapter, **extra}, model=TOKENS)
        assert check(asked, MODEL, HERE) == []


def test_tokens_are_read_once_each() -> None:
    options = ModelOptions(new_tokens=" <tool>,</tool> , <tool>")

    assert options.new_token_texts == ("<tool>", "</tool>")
