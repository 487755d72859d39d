"""The button that tries the studio in one press, on the starter model and dataset."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.methods import DEFAULT_METHOD, get_method
from studio.web.experiments import draft_form, new_experiment_page
from studio.web.http.deps import DB, Config

router = APIRouter(include_in_schema=False)

PRESET = "quick"


@router.post("/quick-start")
def start(request: Request, db: DB, config: Config) -> Response:
    """Run the preset and show its run, or show the form with what prevents it."""
    draft = draft_form.draft_from_preset(db, config, get_method(DEFAULT_METHOD), PRESET)
    return new_experiment_page.submit(request, db, draft)
