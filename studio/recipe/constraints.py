"""Settings of a recipe that cannot be combined or that no run can use, and why."""

from collections.abc import Iterator

from studio.recipe.base import Conflict, Recipe
from studio.recipe.fields import Section, field_spec
from studio.recipe.precision import AUTO, PRECISIONS
from studio.recipe.sections import Lora

_ADAMW_OPTIMIZERS = ("adamw_torch_fused", "adamw_torch")


def find_conflict(recipe: Recipe) -> Conflict | None:
    """Return the first conflict in a recipe that holds on any machine, or None."""
    return next(_conflicts(recipe), None)


def _conflicts(recipe: Recipe) -> Iterator[Conflict]:
    yield from recipe.own_conflicts()
    if recipe.precision == AUTO:
        return  # The studio chooses a precision that fits the other settings.
    mode, adapter, optim = PRECISIONS[recipe.precision], recipe.adapter, recipe.optimisation.optim
    if mode.is_for_all_weights and isinstance(adapter, Lora):
        yield Conflict(
            message=f"{mode.title} sets the format of trained weights; an adapter's are float32.",
            hint="Choose a full fine-tune, or bfloat16 mixed with the frozen model in bfloat16.",
            param="precision",
        )
    if mode.rounding is not None and optim not in _ADAMW_OPTIMIZERS:
        yield Conflict(
            message=f"{mode.title} uses its own optimizer, {mode.optimizer}, instead of {optim}.",
            hint="Choose AdamW, or another precision.",
            param="optimisation.optim",
        )
    if isinstance(adapter, Lora) and mode.autocast is None:
        dtype = adapter.base_dtype
        if dtype not in ("native", mode.weights) and adapter.quantised is None:
            yield Conflict(
                message=f"A frozen model in {dtype} computes in {dtype}, not in {mode.compute}.",
                hint="Keep the frozen model as saved, or choose a mixed precision.",
                param="adapter.base_dtype",
            )
    if adapter.quantised is not None and mode.matmul != mode.compute:
        yield Conflict(
            message=f"{mode.title} changes products of float32 weights, but "
            f"{adapter.quantised.name} weights use their own product kernels.",
            hint="Choose float32, or keep the frozen model as saved.",
            param="precision",
        )


def unusable_values(recipe: Recipe) -> Iterator[Conflict]:
    """Yield values outside their usable range, or without effect unless another is set.

    They are rejected on submission. A setting's type also validates stored recipes, so a bound
    added there would make them unreadable.
    """
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
