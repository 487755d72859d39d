"""Training methods with the schema of their recipe, and the precision modes."""

from typing import Any

from fastapi import APIRouter

from studio.errors import NotFoundError
from studio.hardware import detect
from studio.methods import METHODS
from studio.methods.base import Method
from studio.recipe.precision import PRECISIONS, Precision
from studio.web.api.shapes import Listing, Out

router = APIRouter(prefix="/api/v1", tags=["methods"])


class MethodOut(Out):
    name: str
    title: str
    summary: str
    presets: dict[str, dict[str, Any]]
    recipe_schema: dict[str, Any]
    """JSON Schema of the recipe, with bounds, defaults and help."""


class PrecisionOut(Out):
    name: str
    title: str
    summary: str
    weights: str
    compute: str
    gradients: str
    optimizer_states: str
    scaler: bool
    bytes_per_parameter: int
    available: bool
    reason: str
    """Why it is not available here."""
    caution: str
    """What to know before choosing it here."""


@router.get("/methods")
def methods() -> Listing[MethodOut]:
    return Listing(data=[_shown(one) for one in METHODS.values()], has_more=False, next_after=None)


@router.get("/methods/{name}")
def method(name: str) -> MethodOut:
    if name not in METHODS:
        raise NotFoundError(f"There is no method called {name}.", hint=f"Try {', '.join(METHODS)}.")
    return _shown(METHODS[name])


@router.get("/precisions")
def precisions() -> Listing[PrecisionOut]:
    modes = [_mode(mode) for mode in PRECISIONS.values()]
    return Listing(data=modes, has_more=False, next_after=None)


def _shown(one: Method) -> MethodOut:
    return MethodOut(
        name=one.name,
        title=one.title,
        summary=one.summary,
        presets={preset.name: dict(preset.values) for preset in one.presets},
        recipe_schema=one.recipe.model_json_schema(),
    )


def _mode(mode: Precision) -> PrecisionOut:
    reason = mode.refusal(detect())
    told = {"available": not reason, "reason": reason, "caution": mode.caution(detect())}
    table = {name: getattr(mode, name) for name in PrecisionOut.model_fields.keys() - told}
    return PrecisionOut.model_validate(table | told)
