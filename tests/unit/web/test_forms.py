"""A section becomes a form, and what comes back means the same."""

from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt
from pydantic import Field, ValidationError

from studio.recipe.fields import FieldSpec, Section
from studio.web.experiments.draft_form import form_changes
from studio.web.forms.recipe_form import Fieldset, field_problems, fieldset, parse_posted


class Sugar(Section):
    """Sweet.

    This is for those who read the code.
    """

    kind: Literal["sugar"] = "sugar"
    spoons: Annotated[int, Ge(1), FieldSpec("Spoons")] = 2


class Milk(Section, title="Milk, of any kind"):
    """White."""

    kind: Literal["milk"] = "milk"
    oat: Annotated[bool, FieldSpec("Oat milk", advanced=True)] = False


class Tea(Section):
    """A hot drink."""

    leaf: Annotated[str, Field(min_length=1), FieldSpec("Leaf")]
    """What it is made of."""
    minutes: Annotated[float, Gt(0), FieldSpec("Minutes", "min")] = 3.0
    cups: Annotated[int | None, Ge(1), FieldSpec("Cups", advanced=True)] = None
    size: Annotated[Literal["small", "large"], FieldSpec("Size")] = "small"
    extra: Annotated[Sugar | Milk, Field(discriminator="kind")] = Sugar()


def shown(form: Fieldset) -> dict[str, str]:
    return {item.name: item.value for item in form.all_inputs()}


def problems(**values: object) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        Tea.model_validate(parse_posted(Tea, values), strict=False)
    return field_problems(caught.value, Tea)


def test_every_knob_has_a_control_with_its_default() -> None:
    assert shown(fieldset(Tea, {})) == {
        "leaf": "",
        "minutes": "3",
        "cups": "",
        "size": "small",
        "extra.spoons": "2",
        "extra.oat": "false",
    }


def test_the_kind_of_control_follows_from_the_type() -> None:
    widgets = {item.name: item.widget for item in fieldset(Tea, {}).all_inputs()}

    assert widgets == {
        "leaf": "text",
        "minutes": "number",
        "cups": "number",
        "size": "select",
        "extra.spoons": "number",
        "extra.oat": "checkbox",
    }


def test_choices_are_those_of_the_type() -> None:
    assert fieldset(Tea, {}).input("size").choices == ("small", "large")


def test_help_is_the_line_under_the_field() -> None:
    assert fieldset(Tea, {}).input("leaf").help == "What it is made of."


def test_the_intro_leaves_out_what_is_for_programmers() -> None:
    (extra,) = fieldset(Tea, {}).sections

    assert [one.intro for one in extra.variants] == ["Sweet.", "White."]


def test_alternatives_are_titled_by_their_section_or_their_kind() -> None:
    (extra,) = fieldset(Tea, {}).sections

    assert [one.title for one in extra.variants] == ["Sugar", "Milk, of any kind"]


def test_what_a_person_typed_stays_as_it_was() -> None:
    form = fieldset(Tea, {"leaf": "mint", "minutes": "three", "extra": {"spoons": "x"}})

    assert [shown(form)[name] for name in ("leaf", "minutes", "extra.spoons")] == [
        "mint",
        "three",
        "x",
    ]


def test_numbers_are_written_short() -> None:
    values = {"minutes": 0.0002}

    assert fieldset(Tea, values).input("minutes").value == "0.0002"


def test_the_chosen_alternative_is_the_one_in_force() -> None:
    (extra,) = fieldset(Tea, {"extra": {"kind": "milk"}}).sections

    assert (extra.variant, [one.variant for one in extra.variants]) == ("milk", ["sugar", "milk"])


def test_a_text_where_a_group_belongs_is_passed_over() -> None:
    assert shown(fieldset(Tea, {"extra": "nonsense"}))["extra.spoons"] == "2"


def test_a_problem_stands_at_its_field() -> None:
    form = fieldset(Tea, {}, {"cups": "Too few."})

    assert form.input("cups").problem == "Too few."


def test_what_is_not_as_it_began_is_changed() -> None:
    base = {"leaf": "mint", "minutes": 3.0, "extra": {"kind": "sugar", "spoons": 1}}
    typed = {"leaf": "mint", "minutes": "3e0", "extra": {"kind": "sugar", "spoons": "2"}}
    form = fieldset(Tea, typed, base=base)

    assert [item.name for item in form.all_inputs() if item.is_changed] == ["extra.spoons"]


def test_what_nobody_said_stands_at_its_default() -> None:
    form = fieldset(Tea, {"leaf": "mint", "minutes": "3.0", "cups": "2"})

    assert [item.name for item in form.active_inputs() if not item.is_default] == ["leaf", "cups"]


def test_only_the_alternative_chosen_is_in_force() -> None:
    form = fieldset(Tea, {"extra": {"kind": "milk"}})

    assert [item.name for item in form.active_inputs()][-1] == "extra.oat"


def test_changes_are_told_with_what_takes_them_back() -> None:
    base = {"leaf": "mint", "extra": {"kind": "sugar", "spoons": 1}}
    form = fieldset(Tea, {"leaf": "", "extra": {"kind": "milk", "oat": "true"}}, base=base)

    assert [(one.label, one.old_text, one.new_text, one.values) for one in form_changes(form)] == [
        ("Leaf", "mint", "empty", '{"leaf": "mint"}'),
        ("Extra", "Sugar", "Milk, of any kind", '{"extra.kind": "sugar"}'),
        ("Oat milk", "off", "on", '{"extra.oat": "false"}'),
    ]


def test_an_empty_optional_field_means_none() -> None:
    assert parse_posted(Tea, {"leaf": "mint", "cups": ""}) == {"leaf": "mint", "cups": None}


def test_fields_of_the_alternative_not_chosen_are_dropped() -> None:
    posted = {"extra": {"kind": "milk", "oat": "true", "spoons": "9"}}

    assert parse_posted(Tea, posted) == {"extra": {"kind": "milk", "oat": "true"}}


def test_a_field_nobody_knows_is_kept_to_be_refused() -> None:
    assert parse_posted(Tea, {"extra": {"kind": "milk", "salt": "1"}}) == {
        "extra": {"kind": "milk", "salt": "1"}
    }


def test_problems_bear_the_names_of_their_fields() -> None:
    found = problems(leaf="mint", minutes="-1", extra={"kind": "sugar", "spoons": "0"})

    assert found == {
        "minutes": "Must be more than 0.",
        "extra.spoons": "Must be at least 1.",
    }


def test_problems_are_told_in_words() -> None:
    found = problems(leaf="", minutes="soon", cups="half")

    assert found == {
        "leaf": "A value is required.",
        "minutes": "Must be a number, more than 0.",
        "cups": "Must be a whole number, at least 1.",
    }


def test_a_kind_nobody_knows_is_a_problem_of_the_choice() -> None:
    assert list(problems(leaf="mint", extra={"kind": "salt"})) == ["extra"]
