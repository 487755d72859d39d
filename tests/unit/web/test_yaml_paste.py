"""A recipe's text becomes the values of a form, and what does not fit is told in words."""

import json

import pytest

from studio.errors import InvalidError
from studio.methods import METHODS, RECIPE_ADAPTER
from studio.recipe import yaml
from studio.web.experiments.yaml_paste import MAX_CHARS, parse_recipe
from studio.web.forms.recipe_form import parse_posted
from tests.support.factories import make_recipe

SFT = METHODS["sft"]


def test_dumped_recipe_round_trips() -> None:
    recipe = make_recipe(optimisation={"learning_rate": 3e-5, "max_steps": 7}, precision="fp32")
    poured = parse_recipe(yaml.dump(recipe), SFT)

    again = RECIPE_ADAPTER.validate_python(parse_posted(SFT.recipe, poured.values), strict=False)
    assert (again, poured.problems) == (recipe, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "optimisation: {learning_rat: 1}",
            "There is no setting named optimisation.learning_rat. Did you mean learning_rate?",
        ),
        (
            "learning_rate: 1",
            "There is no setting named learning_rate. Did you mean optimisation.learning_rate?",
        ),
        ("xyz: 1", "There is no setting named xyz."),
        ("optimisation: fast", "optimisation expects a group of settings."),
        ("optimisation: {seed: [1, 2]}", "optimisation.seed expects a single value."),
        ("adapter: {kind: full, r: 8}", "There is no setting named adapter.r."),
        ("method: magic", "There is no method named 'magic'."),
        ("version: [1]", "This version of the recipe format is not supported."),
    ],
)
def test_invalid_recipe_values_are_reported(text: str, problem: str) -> None:
    assert [
        told.split(" Did you mean adapter")[0] for told in parse_recipe(text, SFT).problems
    ] == [problem]


def test_valid_values_are_kept_beside_invalid_values() -> None:
    poured = parse_recipe("precision: fp32\nsped: 2\ndata: {max_length: 64}", SFT)

    assert poured.values == {"precision": "fp32", "data": {"max_length": "64"}}


def test_nested_yaml_aliases_are_processed_only_once() -> None:
    levels = "".join(f"b{n}: &b{n} [{f'*b{n - 1}, ' * 9}1]\n" for n in range(1, 30))
    poured = parse_recipe(f"b0: &b0 [1]\n{levels}dataset: *b29", SFT)

    assert (poured.values, poured.problems[-1]) == ({}, "dataset expects a single value.")


def test_grader_may_be_written_as_yaml() -> None:
    reward = (
        "reward: {grader: {type: string_check, name: a, input: b, reference: c, operation: eq}}"
    )
    pasted = parse_recipe(f"method: grpo\n{reward}", SFT)

    assert json.loads(pasted.values["reward"]["grader"]) == {
        "type": "string_check",
        "name": "a",
        "input": "b",
        "reference": "c",
        "operation": "eq",
    }


def test_grader_of_nested_yaml_aliases_is_cut_off() -> None:
    levels = "".join(f"b{n}: &b{n} [{f'*b{n - 1}, ' * 9}1]\n" for n in range(1, 30))
    text = f"method: grpo\nb0: &b0 [1]\n{levels}reward: {{grader: {{name: *b29}}}}"

    grader = parse_recipe(text, SFT).values["reward"]["grader"]
    assert MAX_CHARS < len(grader) < 2 * MAX_CHARS


def test_invalid_recipe_text_is_rejected() -> None:
    with pytest.raises(InvalidError, match="line 1"):
        parse_recipe("a: b: c", SFT)
    with pytest.raises(InvalidError, match="at most"):
        parse_recipe("x" * (MAX_CHARS + 1), SFT)
