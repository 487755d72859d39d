"""A recipe survives every road it can take."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe
from studio.recipe import yaml
from studio.recipe.dotted_keys import nest
from studio.recipe.precision import PRECISIONS
from studio.web.forms.recipe_form import Fieldset, fieldset, parse_posted

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
RATES = st.floats(min_value=1e-12, max_value=1)


def _recipe(**values: Any) -> AnyRecipe:  # noqa: ANN401 -- any field of a recipe
    return RECIPE_ADAPTER.validate_python(values)


ADAPTERS = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.just("lora"),
            "r": st.integers(1, 1024),
            "lora_dropout": st.floats(0, 0.99),
            "use_rslora": st.booleans(),
        }
    ),
    st.just({"kind": "full"}),
)
OPTIMISATIONS = st.fixed_dictionaries(
    {
        "learning_rate": RATES,
        "num_train_epochs": st.floats(min_value=1e-3, max_value=1000),
        "max_steps": st.none() | st.integers(1, 10_000_000),
        "weight_decay": st.floats(0, 1),
        "activation_checkpointing": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)
CHECKPOINTS = st.fixed_dictionaries(
    {
        "save_minutes": st.none() | st.floats(min_value=0.01, max_value=10_080),
        "save_steps": st.none() | st.integers(1, 10_000_000),
        "keep_after_success": st.booleans(),
    }
)
recipes = st.builds(
    _recipe,
    method=st.sampled_from(list(METHODS)),
    base_model=NAMES,
    dataset=NAMES,
    precision=st.sampled_from(list(PRECISIONS)),
    adapter=ADAPTERS,
    optimisation=OPTIMISATIONS,
    checkpoints=CHECKPOINTS,
)


def _sent(form: Fieldset) -> list[tuple[str, str]]:
    """Return what a browser sends: every control, those of alternatives not chosen as well."""
    kinds = [(f"{part.name}.kind", part.variant) for part in form.sections if part.variants]
    return [*kinds, *((item.name, item.value) for item in form.all_inputs())]


@given(recipes)
def test_recipe_yaml_round_trip_is_lossless(recipe: AnyRecipe) -> None:
    again = RECIPE_ADAPTER.validate_python(yaml.load(yaml.dump(recipe)), strict=False)

    assert again == recipe


@given(recipes)
def test_recipe_form_round_trip_is_lossless(recipe: AnyRecipe) -> None:
    sent = nest([("method", recipe.method), *_sent(fieldset(type(recipe), recipe.model_dump()))])
    again = RECIPE_ADAPTER.validate_python(parse_posted(type(recipe), sent), strict=False)

    assert again == recipe
