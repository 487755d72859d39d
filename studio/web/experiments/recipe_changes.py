"""The changed settings of a recipe: against the start of a form, or against its parent."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from studio.methods import AnyRecipe
from studio.web.forms.recipe_form import Fieldset, fieldset


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed setting."""

    name: str
    """Dotted name of the setting."""
    field: str
    """The name of its field."""
    id: str
    label: str
    old_text: str
    new_text: str
    values: str
    """The fields that revert it, by their names, as JSON."""


def form_changes(form: Fieldset) -> list[Change]:
    """Return the changed settings in form order, without those of variants that are not chosen."""
    return list(_iter_changes(form))


def recipe_changes(recipe: AnyRecipe, parent: AnyRecipe) -> list[Change]:
    """Return the settings in which a recipe differs from its parent."""
    return form_changes(fieldset(type(recipe), recipe.model_dump(), base=parent.model_dump()))


def revert_values(found: list[Change]) -> str:
    """Return the fields that revert all changes, as JSON."""
    return json.dumps(
        {name: old for change in found for name, old in json.loads(change.values).items()}
    )


def _iter_changes(form: Fieldset) -> Iterator[Change]:
    for item in form.inputs:
        if item.is_changed:
            yield Change(
                name=item.name,
                field=item.field,
                id=item.id,
                label=item.knob.label,
                old_text=item.display_text(item.initial),
                new_text=item.display_text(item.value),
                values=json.dumps({item.field: item.initial}),
            )
    if form.variant != form.initial_variant:
        titles = {item.variant: item.title for item in form.variants}
        yield Change(
            name=f"{form.name}.kind",
            field=f"{form.name}.kind",
            id=f"{form.name}-kind".replace(".", "-"),
            label=form.title,
            old_text=titles[form.initial_variant],
            new_text=titles[form.variant],
            values=json.dumps({f"{form.name}.kind": form.initial_variant}),
        )
    for section in (
        *form.sections,
        *(item for item in form.variants if item.variant == form.variant),
    ):
        yield from _iter_changes(section)
