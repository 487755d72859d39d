"""Number formats: type a number or press a bit, and see what each format stores and loses."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from studio.recipe.precision import FLOAT_FORMATS
from studio.services.precision import float_encoding, lost_updates
from studio.services.precision.float_encoding import Number, Rounding, StoredNumber
from studio.services.precision.lost_updates import AddedUpdates
from studio.web.numbers.exact_digits import digits
from studio.web.rendering.render import block, page, wants_fragment

router = APIRouter(prefix="/numbers", include_in_schema=False)

PRESETS = (
    ("0.1", "0.1"),
    ("1/3", "1/3"),
    ("0.02", "a typical weight"),
    ("1e-8", "a small gradient"),
    ("65520", "65520"),
    ("70000", "70000"),
    ("nan", "NaN"),
)
"""Numbers worth a look: what to type, and the label."""

_DEFAULT = "0.1"
_DEFAULT_WEIGHT, _DEFAULT_UPDATE = "1", "0.0001"

Text = Annotated[str, Query(max_length=float_encoding.MAX_TEXT_LENGTH)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberView:
    """A number in every format."""

    text: str
    number: Number | None
    """None if the text is no number."""
    roundings: tuple[Rounding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesView:
    weight: str
    update: str
    rows: tuple[AddedUpdates, ...]
    """Empty if one of them is not a finite number."""

    @property
    def stuck(self) -> int:
        """How many formats lose every update."""
        return sum(row.is_stuck for row in self.rows)


@router.get("")
def show(
    request: Request,
    x: Text = _DEFAULT,
    preset: Text = "",
    bits: Text = "",
    weight: Text = _DEFAULT_WEIGHT,
    update: Text = _DEFAULT_UPDATE,
) -> Response:
    context: dict[str, Any] = {
        "view": view_number(preset or x, float_encoding.read_code(bits)),
        "updates": view_updates(weight, update),
        "presets": PRESETS,
        "digits": digits,
        "count": lost_updates.UPDATES,
        "is_retyped": bool(preset or bits) and wants_fragment(request),
    }
    if wants_fragment(request):
        return block(request, "numbers/show.html", "results", **context)
    return page(request, "numbers/show.html", **context)


def view_number(text: str, pressed: StoredNumber | None) -> NumberView:
    """Round a number to every format. A pressed bit makes the number, and keeps its own code."""
    if pressed is None:
        number = float_encoding.parse_number(text)
        return NumberView(text=text, number=number, roundings=_round_to_all(number))
    rows = tuple(
        Rounding(exact=row.exact, stored=pressed) if row.stored.name == pressed.name else row
        for row in _round_to_all(pressed.number)
    )
    text = float_encoding.exact_text(pressed.number)
    return NumberView(text=text, number=pressed.number, roundings=rows)


def view_updates(weight: str, update: str) -> UpdatesView:
    start, change = float_encoding.parse_number(weight), float_encoding.parse_number(update)
    is_usable = all(
        number is not None and -lost_updates.MAX_MAGNITUDE <= number <= lost_updates.MAX_MAGNITUDE
        for number in (start, change)
    )
    rows = lost_updates.add_updates(float(start or 0), float(change or 0)) if is_usable else ()
    return UpdatesView(weight=weight, update=update, rows=rows)


def _round_to_all(number: Number | None) -> tuple[Rounding, ...]:
    if number is None:
        return ()
    return tuple(float_encoding.round_number(number, name) for name in FLOAT_FORMATS)
