"""Values that a recipe may store but no run can use: rejected when it is submitted.

A setting's type also validates stored recipes, so a bound added there would make them unreadable.
"""

from collections.abc import Iterator

from studio.recipe.base import Recipe
from studio.recipe.constraints import Conflict
from studio.recipe.fields import Section, field_spec


def unusable_values(recipe: Recipe) -> Iterator[Conflict]:
    """Yield values outside their usable range, or without effect unless another is set."""
    yield from _out_of_range(recipe, "")
    stopping = recipe.early_stopping
    if stopping.early_stopping_threshold and stopping.early_stopping_patience is None:
        yield Conflict(
            message="The min improvement has no effect without patience.",
            hint="Also set the patience of early stopping, or leave the min improvement at 0.",
            param="early_stopping.early_stopping_patience",
        )


def _out_of_range(section: Section, prefix: str) -> Iterator[Conflict]:
    for name, info in type(section).model_fields.items():
        value, spec = getattr(section, name), field_spec(info)
        if isinstance(value, Section):
            yield from _out_of_range(value, f"{prefix}{name}.")
        elif spec and spec.usable_range and value is not None:
            low, high = spec.usable_range
            if not low <= value <= high:
                yield Conflict(
                    message=f"{spec.label} must be between {low:g} and {high:,.12g}.",
                    hint="",
                    param=f"{prefix}{name}",
                )
