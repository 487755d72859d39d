"""Numbers that a recipe may hold and no run could use: refused when it is submitted.

A knob's type holds for stored recipes, too, so a bound added there would make them unreadable.
"""

from collections.abc import Iterator

from studio.recipe.base import Recipe
from studio.recipe.constraints import Conflict
from studio.recipe.fields import Section, field_spec


def unusable_values(recipe: Recipe) -> Iterator[Conflict]:
    """Yield what is out of the range that can have an effect, or has none without another knob."""
    yield from _out_of_range(recipe, "")
    stopping = recipe.early_stopping
    if stopping.early_stopping_threshold and stopping.early_stopping_patience is None:
        yield Conflict(
            message="The least improvement has no effect without patience.",
            hint="Set the patience of early stopping, too, or leave the least improvement at 0.",
            param="early_stopping.early_stopping_patience",
        )


def _out_of_range(section: Section, prefix: str) -> Iterator[Conflict]:
    for name, info in type(section).model_fields.items():
        value, knob = getattr(section, name), field_spec(info)
        if isinstance(value, Section):
            yield from _out_of_range(value, f"{prefix}{name}.")
        elif knob and knob.usable_range and value is not None:
            low, high = knob.usable_range
            if not low <= value <= high:
                yield Conflict(
                    message=f"{knob.label} must be between {low:g} and {high:,.12g}.",
                    hint="",
                    param=f"{prefix}{name}",
                )
