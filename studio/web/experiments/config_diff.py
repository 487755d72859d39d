"""Changes of a recipe form from its starting point: a preset, a run or another experiment."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from studio.methods import AnyRecipe
from studio.web.forms.controls import Fieldset
from studio.web.forms.recipe_form import fieldset


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed setting."""

    name: str
    """Dotted name of the setting."""
    id: str
    label: str
    before: str
    after: str
    values: str
    """The fields that revert it, by their dotted names, as JSON."""


def form_changes(form: Fieldset) -> list[Change]:
    """Return the changed settings in form order, without those of variants that are not chosen."""
    return list(_iter_changes(form))


def recipe_changes(recipe: AnyRecipe, parent: AnyRecipe) -> list[Change]:
    """Return the settings in which a recipe differs from its parent."""
    return form_changes(fieldset(type(recipe), recipe.model_dump(), base=parent.model_dump()))


def revert_values(found: list[Change]) -> str:
    """Return the fields that revert all changes, as JSON."""
    return json.dumps({name: old for one in found for name, old in json.loads(one.values).items()})


def _iter_changes(form: Fieldset) -> Iterator[Change]:
    for one in form.inputs:
        if one.is_changed:
            yield Change(
                name=one.name,
                id=one.id,
                label=one.knob.label,
                before=one.titled(one.base),
                after=one.titled(one.value),
                values=json.dumps({one.name: one.base}),
            )
    if form.kind != form.base_kind:
        titles = {one.kind: one.title for one in form.kinds}
        yield Change(
            name=f"{form.name}.kind",
            id=f"{form.name}-kind".replace(".", "-"),
            label=form.title,
            before=titles[form.base_kind],
            after=titles[form.kind],
            values=json.dumps({f"{form.name}.kind": form.base_kind}),
        )
    for part in (*form.inner, *(one for one in form.kinds if one.kind == form.kind)):
        yield from _iter_changes(part)
