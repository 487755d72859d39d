"""What may mend a run that has failed, or whose numbers break: changes of its recipe, by code.

Every repair is one click: the same recipe with a few values changed, as a new run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from studio.hardware import Hardware
from studio.methods import RECIPES, AnyRecipe
from studio.recipe.conflicts import conflict
from studio.recipe.dotted import merge
from studio.recipe.precision import PRECISIONS, PrecisionName

SLOWER = 10
"""What the learning rate is divided by: less seldom helps a run that has diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    title: str
    """What will be done, after "Run again"."""
    change: dict[str, Any]
    """Values to lay over the recipe."""


_Way = Callable[[AnyRecipe], Iterator[Repair]]


def of(code: str, recipe: AnyRecipe, hardware: Hardware) -> list[Repair]:
    """Return the repairs of a trouble that can run here, the likeliest first."""
    offered = (repair for way in _WAYS.get(code, ()) for repair in way(recipe))
    return [repair for repair in offered if _runs(recipe, repair, hardware)]


def _runs(recipe: AnyRecipe, repair: Repair, hardware: Hardware) -> bool:
    changed = RECIPES.validate_python(merge(recipe.model_dump(), repair.change))
    return not PRECISIONS[changed.precision].refusal(hardware) and conflict(changed) is None


def _wider(recipe: AnyRecipe) -> Iterator[Repair]:
    """Offer the formats with more room: the range of float32 first, then all of it."""
    mode = PRECISIONS[recipe.precision]
    wider: tuple[PrecisionName, ...] = ("fp32",)
    if mode.scaler or mode.weights != "float32" or mode.is_float8:
        wider = ("bf16", "fp32")
    for name in wider:
        if name != mode.name:
            yield Repair(title=f"in {PRECISIONS[name].title}", change={"precision": name})


def _slower(recipe: AnyRecipe) -> Iterator[Repair]:
    rate = float(f"{recipe.optimisation.learning_rate / SLOWER:.3g}")
    title = f"with a learning rate of {rate:g}"
    yield Repair(title=title, change={"optimisation": {"learning_rate": rate}})


_WAYS: dict[str, tuple[_Way, ...]] = {
    "non_finite": (_wider, _slower),
    "nan_weights": (_wider, _slower),
    "activations_overflow": (_wider, _slower),
    "gradients_overflow": (_slower,),
    "gradients_underflow": (_wider,),
    "little_headroom": (_wider,),
    "loss_scale_collapsed": (_wider,),
    "precision_fallback": (_wider,),
    "updates_lost": (_wider,),
}
