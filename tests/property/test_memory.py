"""What must hold of every estimate of memory."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from studio.methods import AnyRecipe
from studio.services.estimates.activation_memory import BatchShape
from studio.services.estimates.memory import estimate
from studio.weights.family_limits import FAMILY_LAYERS
from studio.weights.model_config import ModelShape
from studio.weights.model_facts import ModelFacts
from tests.support.factories import make_recipe

WIDE = ["fp32", "bf16", "fp16", "fp32_tf32"]
NARROW = ["bf16_dual", "bf16_pure", "bf16_stochastic", "bf16_kahan"]

recipes = st.builds(
    lambda way, steps, again: make_recipe(
        precision=way[0],
        adapter={"kind": way[1]},
        optimisation={
            "gradient_accumulation_steps": steps,
            "activation_checkpointing": again,
        },
    ),
    st.sampled_from([*((mode, "full") for mode in WIDE + NARROW), *((m, "lora") for m in WIDE)]),
    st.integers(1, 2),
    st.booleans(),
)
loads = st.builds(
    lambda batch, length, answers: BatchShape(batch, length, min(length, answers)),
    st.integers(1, 64),
    st.integers(1, 4096),
    st.integers(1, 4096),
)


def model(layers: int, hidden: int, family: str) -> ModelFacts:
    shape = ModelShape(
        layers=layers,
        hidden_size=hidden,
        intermediate=3 * hidden,
        heads=4,
        kv_heads=2,
        head_size=hidden // 4,
        vocab_size=1000,
        tied_embeddings=False,
    )
    linear = layers * 12 * hidden * hidden
    return ModelFacts(
        family=family,
        declared_dtype="float32",
        parameters=linear + 2000 * hidden,
        stored={"float32": 1.0},
        linear_features=layers * 18 * hidden,
        linear_parameters=linear,
        shape=shape,
    )


models = st.builds(
    model, st.integers(1, 64), st.integers(4, 4096), st.sampled_from(sorted(FAMILY_LAYERS))
)


def total(recipe: AnyRecipe, facts: ModelFacts, load: BatchShape) -> int:
    found = estimate(recipe, facts, load, on_gpu=False)
    assert found is not None
    return found.total


@given(recipes, models, loads)
def test_estimate_grows_with_model_depth(
    recipe: AnyRecipe, facts: ModelFacts, load: BatchShape
) -> None:
    assert facts.shape is not None
    deeper = model(facts.shape.layers + 1, facts.shape.hidden_size, facts.family)

    assert total(recipe, deeper, load) > total(recipe, facts, load)


@given(recipes, models, loads)
def test_estimate_never_decreases_with_batch_size(
    recipe: AnyRecipe, facts: ModelFacts, load: BatchShape
) -> None:
    larger = replace(load, batch=load.batch + 1)

    assert total(recipe, facts, larger) >= total(recipe, facts, load)


@given(recipes, models, loads)
def test_estimate_never_decreases_with_sequence_length(
    recipe: AnyRecipe, facts: ModelFacts, load: BatchShape
) -> None:
    longer = replace(load, length=load.length + 1)

    assert total(recipe, facts, longer) >= total(recipe, facts, load)


@given(recipes, models, loads)
def test_estimate_equals_sum_of_its_parts(
    recipe: AnyRecipe, facts: ModelFacts, load: BatchShape
) -> None:
    found = estimate(recipe, facts, load, on_gpu=False)

    assert found is not None
    assert found.total == sum(found.parts.values())
    assert min(found.parts.values()) > 0


@given(recipes, models, loads)
def test_unsupported_model_family_has_no_estimate(
    recipe: AnyRecipe, facts: ModelFacts, load: BatchShape
) -> None:
    assert estimate(recipe, replace(facts, family="mamba"), load, on_gpu=False) is None
