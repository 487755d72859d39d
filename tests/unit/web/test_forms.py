"""A section becomes a form, and what comes back means the same."""

from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt
from pydantic import Field, ValidationError

from studio.recipe.fields import FieldSpec, Section
from studio.web.experiments.recipe_changes import form_changes
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


def test_every_field_has_input_with_default() -> None:
    assert shown(fieldset(Tea, {})) == {
        "leaf": "",
        "minutes": "3",
        "cups": "",
        "size": "small",
        "extra.spoons": "2",
        "extra.oat": "false",
    }


def test_input_widget_follows_field_type() -> None:
    widgets = {item.name: item.widget for item in fieldset(Tea, {}).all_inputs()}

    assert widgets == {
        "leaf": "text",
        "minutes": "number",
        "cups": "number",
        "size": "select",
        "extra.spoons": "number",
        "extra.oat": "checkbox",
    }


def test_choices_come_from_field_type() -> None:
    assert fieldset(Tea, {}).input("size").choices == ("small", "large")


def test_help_comes_from_field_docstring() -> None:
    assert fieldset(Tea, {}).input("leaf").help == "What it is made of."


def test_section_intro_uses_only_first_docstring_paragraph() -> None:
    (extra,) = fieldset(Tea, {}).sections

    assert [one.intro for one in extra.variants] == ["Sweet.", "White."]


def test_variant_title_comes_from_section_or_kind() -> None:
    (extra,) = fieldset(Tea, {}).sections

    assert [one.title for one in extra.variants] == ["Sugar", "Milk, of any kind"]


def test_submitted_text_is_kept_unchanged() -> None:
    form = fieldset(Tea, {"leaf": "mint", "minutes": "three", "extra": {"spoons": "x"}})

    assert [shown(form)[name] for name in ("leaf", "minutes", "extra.spoons")] == [
        "mint",
        "three",
        "x",
    ]


def test_numbers_are_formatted_without_exponent() -> None:
    values = {"minutes": 0.0002}

    assert fieldset(Tea, values).input("minutes").value == "0.0002"


def test_selected_variant_is_shown_with_all_variants() -> None:
    (extra,) = fieldset(Tea, {"extra": {"kind": "milk"}}).sections

    assert (extra.variant, [one.variant for one in extra.variants]) == ("milk", ["sugar", "milk"])


def test_text_posted_for_group_is_ignored() -> None:
    assert shown(fieldset(Tea, {"extra": "nonsense"}))["extra.spoons"] == "2"


def test_problem_is_shown_at_its_field() -> None:
    form = fieldset(Tea, {}, {"cups": "Too few."})

    assert form.input("cups").problem == "Too few."


def test_only_fields_with_new_values_are_marked_changed() -> None:
    base = {"leaf": "mint", "minutes": 3.0, "extra": {"kind": "sugar", "spoons": 1}}
    typed = {"leaf": "mint", "minutes": "3e0", "extra": {"kind": "sugar", "spoons": "2"}}
    form = fieldset(Tea, typed, base=base)

    assert [item.name for item in form.all_inputs() if item.is_changed] == ["extra.spoons"]


def test_only_explicit_values_are_marked_non_default() -> None:
    form = fieldset(Tea, {"leaf": "mint", "minutes": "3.0", "cups": "2"})

    assert [item.name for item in form.active_inputs() if not item.is_default] == ["leaf", "cups"]


def test_only_selected_variant_is_active() -> None:
    form = fieldset(Tea, {"extra": {"kind": "milk"}})

    assert [item.name for item in form.active_inputs()][-1] == "extra.oat"


def test_changes_include_values_that_undo_them() -> None:
    base = {"leaf": "mint", "extra": {"kind": "sugar", "spoons": 1}}
    form = fieldset(Tea, {"leaf": "", "extra": {"kind": "milk", "oat": "true"}}, base=base)

    assert [(one.label, one.old_text, one.new_text, one.values) for one in form_changes(form)] == [
        ("Leaf", "mint", "empty", '{"leaf": "mint"}'),
        ("Extra", "Sugar", "Milk, of any kind", '{"extra.kind": "sugar"}'),
        ("Oat milk", "off", "on", '{"extra.oat": "false"}'),
    ]


def test_empty_optional_field_means_none() -> None:
    assert parse_posted(Tea, {"leaf": "mint", "cups": ""}) == {"leaf": "mint", "cups": None}


def test_fields_of_unselected_variant_are_dropped() -> None:
    posted = {"extra": {"kind": "milk", "oat": "true", "spoons": "9"}}

    assert parse_posted(Tea, posted) == {"extra": {"kind": "milk", "oat": "true"}}


def test_unknown_field_is_kept_for_validation() -> None:
    assert parse_posted(Tea, {"extra": {"kind": "milk", "salt": "1"}}) == {
        "extra": {"kind": "milk", "salt": "1"}
    }


def test_problems_are_keyed_by_field_name() -> None:
    found = problems(leaf="mint", minutes="-1", extra={"kind": "sugar", "spoons": "0"})

    assert found == {
        "minutes": "Must be more than 0.",
        "extra.spoons": "Must be at least 1.",
    }


def test_problems_have_readable_messages() -> None:
    found = problems(leaf="", minutes="soon", cups="half")

    assert found == {
        "leaf": "A value is required.",
        "minutes": "Must be a number, more than 0.",
        "cups": "Must be a whole number, at least 1.",
    }


def test_unknown_kind_is_reported_at_its_group() -> None:
    assert list(problems(leaf="mint", extra={"kind": "salt"})) == ["extra"]


class Loose(Section):
    kind: Literal["loose"] = "loose"
    grams: Annotated[int, Ge(1), FieldSpec("Grams")] = 2
    is_green: Annotated[bool, FieldSpec("Green")] = False


class Bag(Section):
    kind: Literal["bag"] = "bag"
    grams: Annotated[int, Ge(1), FieldSpec("Grams")] = 3
    string: Annotated[bool, FieldSpec("String")] = True


class Pot(Section):
    tea: Annotated[Loose | Bag, Field(discriminator="kind")] = Loose()


def test_setting_of_several_variants_has_an_input_for_each() -> None:
    names = [(item.name, item.field, item.id) for item in fieldset(Pot, {}).all_inputs()]

    assert names == [
        ("tea.grams", "tea.loose.grams", "tea-loose-grams"),
        ("tea.is_green", "tea.is_green", "tea-is_green"),
        ("tea.grams", "tea.bag.grams", "tea-bag-grams"),
        ("tea.string", "tea.string", "tea-string"),
    ]


def test_each_variant_keeps_what_was_typed_into_it() -> None:
    posted = {"tea": {"kind": "bag", "loose": {"grams": "x"}, "bag": {"grams": "7"}}}
    form = fieldset(Pot, posted)

    assert [item.value for item in form.all_inputs() if item.name == "tea.grams"] == ["x", "7"]
    assert parse_posted(Pot, posted) == {"tea": {"kind": "bag", "grams": "7"}}


def test_setting_of_several_variants_has_its_value_in_all_of_them() -> None:
    form = fieldset(Pot, {"tea": {"kind": "loose", "grams": 9}})

    assert [item.value for item in form.all_inputs() if item.name == "tea.grams"] == ["9", "9"]


def test_problem_of_a_shared_setting_is_shown_in_the_chosen_variant() -> None:
    form = fieldset(Pot, {"tea": {"kind": "bag"}}, {"tea.grams": "Too few."})

    assert [item.problem for item in form.all_inputs() if item.name == "tea.grams"] == [
        "",
        "Too few.",
    ]


class Judged(Section):
    """Answers with scores."""

    judge: Annotated[str, FieldSpec("Judge", is_json=True)] = '{"name": "a", "range": [0, 1]}'


def test_json_is_shown_with_a_line_for_each_value() -> None:
    (shown,) = fieldset(Judged, {}).inputs

    assert shown.widget == "json"
    assert shown.value.splitlines()[:2] == ["{", '  "name": "a",']


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ('{"range":[0,1],\r\n"name":"a"}', 0),
        ('{"name": "a", "range": [0, 2]}', 1),
        ('{"name": "a"', 1),
        (r'{"name": "\ud800"}', 1),
        ("[" * 100_000, 1),
    ],
)
def test_formatting_of_json_is_no_change(text: str, changes: int) -> None:
    form = fieldset(Judged, {"judge": text}, base={})

    assert len(form_changes(form)) == changes
    assert form.inputs[0].value.encode()
    assert all(len(change.new_text) < 70 for change in form_changes(form))
