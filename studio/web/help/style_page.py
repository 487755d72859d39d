"""The style guide: every widget, drawn with the macros and classes that pages use.

It is for developers, and available only with STUDIO_DEVELOPMENT=true.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.db.states import RunStatus
from studio.errors import NotFoundError
from studio.methods import DEFAULT_METHOD, METHODS
from studio.web.forms import recipe_form
from studio.web.forms.recipe_form import Fieldset
from studio.web.http.deps import Config
from studio.web.rendering import colours
from studio.web.rendering.render import page

router = APIRouter(prefix="/style", include_in_schema=False)


@router.get("")
def show(request: Request, config: Config) -> Response:
    if not config.development:
        raise NotFoundError("Page not found.", hint="Check the URL.")
    now = datetime.now(UTC)
    return page(
        request,
        "style/show.html",
        tokens=colours.css_variables(),
        statuses=list(RunStatus),
        fields=_sample_form(),
        moments=[now - timedelta(minutes=1) * 9**power for power in range(5)],
        curves=_sample_curves(),
    )


def _sample_form() -> Fieldset:
    """Return a real section with one invalid value."""
    problems = {"optimisation.learning_rate": "This is not a number."}
    values = {"optimisation": {"learning_rate": "fast"}}
    form = recipe_form.fieldset(METHODS[DEFAULT_METHOD].recipe, values, problems)
    return next(section for section in form.sections if section.name == "optimisation")


def _sample_curves() -> dict[str, Any]:
    """Return curves as the server sends them: one with a non-finite value, one without."""
    steps = list(range(1, 121))
    losses = [0.6 + 2.4 * math.exp(-step / 30) + 0.08 * math.sin(step * 1.7) for step in steps]
    eval_losses = [0.7 + 2.3 * math.exp(-step / 28) for step in steps]
    return {
        "x": steps,
        "series": {
            "loss": _sample_series(losses, broken=[64]),
            "eval_loss": _sample_series(eval_losses, broken=[]),
        },
    }


def _sample_series(values: list[float], broken: list[int]) -> dict[str, list[Any]]:
    return {"mean": values, "min": values, "max": values, "non_finite": broken}
