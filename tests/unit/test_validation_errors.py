"""Validation errors in sentences: the field by its name, what it must be, the range it may have."""

from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from studio.methods import METHODS, RECIPE_ADAPTER, AnyRecipe
from studio.schemas.validation_errors import accepts_list, field_errors, range_message


class Part(BaseModel):
    type: Literal["text"]
    text: Annotated[str, Field(max_length=5)]


class Turn(BaseModel):
    content: Annotated[str, Field(min_length=1)] | list[Part]


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=1, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Everything(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    turns: list[Turn] = []
    epochs: Literal["auto"] | Annotated[int, Ge(1), Le(50)] = "auto"
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] = Cat()
    rates: dict[str, Annotated[float, Gt(0), Lt(1)]] = {}
    size: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    even: Annotated[int, Field(multiple_of=2)] = 2
    names: Annotated[list[str], Field(min_length=1, max_length=2)] = ["a"]
    on: bool = True
    long_name: Annotated[int, Field(alias="from")] = 1

    @field_validator("even")
    @classmethod
    def is_lucky(cls, value: int) -> int:
        if value == 4:
            raise ValueError("Four brings no luck.")
        return value


def errors_of(given: Any, model: Any = Everything) -> list[str]:  # noqa: ANN401 -- any input
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(model).validate_python(given)
    return [str(error) for error in field_errors(caught.value.errors(), model)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epochs": "x"}, "epochs: Must be 'auto' or a whole number between 1 and 50."),
        ({"turns": [{"content": 3}]}, "turns.0.content: Must be text or a list."),
        ({"turns": [{"content": ""}]}, "turns.0.content: A value is required."),
        (
            {"turns": [{"content": [{"type": "text"}]}]},
            "turns.0.content.0.text: A value is required.",
        ),
        (
            {"turns": [{"content": [{"type": "text", "text": "longer"}]}]},
            "turns.0.content.0.text: Must have at most 5 characters.",
        ),
        ({"pet": {"kind": "cow"}}, "pet.kind: Must be one of 'cat', 'dog'."),
        ({"pet": {}}, "pet.kind: A value is required."),
        ({"pet": {"kind": "cat", "lives": 10}}, "pet.lives: Must be between 1 and 9."),
        ({"rates": {"a": 2.0}}, "rates.a: Must be more than 0 and less than 1."),
        ({"size": 0}, "size: Must be at least 1."),
        ({"size": "0"}, "size: Must be a whole number, at least 1."),
        ({"even": 3}, "even: Must be a multiple of 2."),
        ({"even": 4}, "even: Four brings no luck."),
        ({"names": []}, "names: A value is required."),
        ({"names": ["a", "b", "c"]}, "names: Must have at most 2 entries."),
        ({"names": "a"}, "names: Must be a list."),
        ({"on": "yes"}, "on: Must be true or false."),
        ({"from": "x"}, "from: Must be a whole number."),
        ({"form": 1}, "form: Unknown field. Did you mean from?"),
        ([], "Must be an object with fields."),
        ("x", "Must be an object with fields."),
    ],
)
def test_error_message_starts_with_field_name(given: object, expected: str) -> None:
    assert errors_of(given) == [expected]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"optimisation": {"learning_rate": "fast"}},
            "optimisation.learning_rate: Must be a number, more than 0 and at most 1.",
        ),
        (
            {"optimisation": {"learning_rate": float("nan")}},
            "optimisation.learning_rate: Must be a finite number, more than 0 and at most 1.",
        ),
        (
            {"optimisation": {"lerning_rate": 1.0}},
            "optimisation.lerning_rate: Unknown field. Did you mean learning_rate?",
        ),
        ({"adapter": {"kind": "lora", "r": 2000}}, "adapter.r: Must be between 1 and 1,024."),
        (
            {"adapter": {"kind": "prefix"}},
            "adapter.kind: Must be one of 'lora', 'oft', 'ia3', 'full'.",
        ),
    ],
)
def test_recipe_error_states_full_range(change: dict[str, Any], expected: str) -> None:
    recipe = {"base_model": "starter", "dataset": "starter"}

    assert errors_of(recipe | change, AnyRecipe) == [expected]
    with pytest.raises(ValidationError):
        RECIPE_ADAPTER.validate_python(recipe | change)


def test_error_without_model_states_only_broken_bound() -> None:
    with pytest.raises(ValidationError) as caught:
        Everything.model_validate({"pet": {"kind": "cat", "lives": 10}})

    assert str(field_errors(caught.value.errors())[0]) == "pet.cat.lives: Must be at most 9."


def test_each_error_is_reported_once_and_in_order() -> None:
    found = errors_of({"on": 1, "size": 0, "names": [1, 2]})

    assert found == [
        "size: Must be at least 1.",
        "names.0: Must be text.",
        "names.1: Must be text.",
        "on: Must be true or false.",
    ]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([], ""),
        ([Ge(1)], "Must be at least 1."),
        ([Gt(0), Lt(1)], "Must be more than 0 and less than 1."),
        ([Ge(0), Le(2**60)], "Must be at least 0."),
        ([Ge(1e-12), Le(10_000_000)], "Must be between 1e-12 and 10,000,000."),
    ],
)
def test_range_message_describes_bounds(bounds: list[Any], expected: str) -> None:
    assert range_message(bounds) == expected


@pytest.mark.parametrize(
    ("kind", "expected"), [(list[int], True), (str | None, False), (list[str] | None, True)]
)
def test_accepts_list_detects_list_types(kind: object, expected: bool) -> None:  # noqa: FBT001 -- a table of cases
    assert accepts_list(kind) == expected


@pytest.mark.parametrize("method", METHODS)
def test_errors_of_recipes_name_the_field_whatever_the_method_is_called(method: str) -> None:
    """A method may be called like a section of another one, as reward is."""
    recipe = {"method": method, "base_model": "starter", "dataset": "rows"}

    for given, field in (
        ({"optimisation": {"learning_rate": -1}}, "optimisation.learning_rate"),
        ({"adapter": {"kind": "none"}}, "adapter.kind"),
        ({"adapter": {"kind": "lora", "r": 0}}, "adapter.r"),
        ({"method": "unknown"}, "method"),
    ):
        (error,) = errors_of(recipe | given, AnyRecipe)
        assert error.startswith(f"{field}: ")
