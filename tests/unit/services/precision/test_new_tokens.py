"""What is said of new tokens before a run starts: refusals with repairs."""

from typing import Any

import pytest

from studio.recipe.model_options import ModelOptions
from studio.services.precision import number_formats
from studio.services.precision.incompatibilities import check
from tests.support.factories import make_recipe
from tests.unit.services.precision.test_lora_variants import MODEL
from tests.unit.services.precision.test_quantised import HERE

TOKENS = {"new_tokens": "<tool>, </tool>"}


@pytest.mark.parametrize(
    ("adapter", "message", "repair"),
    [
        (
            {"kind": "oft"},
            "cannot train the embeddings of new tokens alone",
            {"model": {"new_tokens": None}},
        ),
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
    for adapter in ({"kind": "full"}, {"kind": "full", "trained_layers": 0}, {"kind": "lora"}):
        extra = {"also_trained": "embeddings"} if "trained_layers" in adapter else {}
        asked = make_recipe(precision="bf16", adapter={**adapter, **extra}, model=TOKENS)
        assert check(asked, MODEL, HERE) == []


def test_tokens_are_read_once_each() -> None:
    options = ModelOptions(new_tokens=" <tool>,</tool> , <tool>")

    assert options.new_token_texts == ("<tool>", "</tool>")


@pytest.mark.parametrize(
    ("extra", "new_tokens"), [("none", 2), ("norms", 2), ("output", 2), ("embeddings", 0)]
)
def test_only_rows_of_frozen_embeddings_are_trained_apart(extra: str, new_tokens: int) -> None:
    recipe = make_recipe(adapter={"kind": "lora", "extra_modules": extra}, model=TOKENS)

    assert recipe.trained.new_tokens == new_tokens
    assert recipe.trained.reaches_first_layer == (extra != "none" or new_tokens > 0)


def test_plan_counts_the_rows_of_both_tables() -> None:
    asked, plain = (
        make_recipe(precision="bf16", adapter={"kind": "lora"}, model=model)
        for model in (TOKENS, {})
    )
    counts = [number_formats.plan_dtypes(one, MODEL).trained_parameters for one in (asked, plain)]
    tables = [weight for weight in MODEL.weights if weight.is_table]

    assert MODEL.shape is not None
    assert counts[0] is not None
    assert counts[1] is not None
    assert counts[0] - counts[1] == 2 * len(tables) * MODEL.shape.hidden_size > 0


def test_rows_can_have_the_learning_rate_of_embeddings() -> None:
    rate = {"embedding_learning_rate": 1e-4}
    asked = make_recipe(precision="bf16", adapter={"kind": "lora"}, optimisation=rate)
    assert "have no learning rate" in check(asked, MODEL, HERE)[0].message

    asked = make_recipe(precision="bf16", adapter={"kind": "lora"}, model=TOKENS, optimisation=rate)
    assert check(asked, MODEL, HERE) == []
