"""The button of the graders page that trains with the grader: the form of an experiment has it."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from studio.methods import METHODS
from studio.web.experiments import draft_form, new_experiment_page
from studio.web.experiments.reward_choice import GRADER, learns_from_scores
from studio.web.graders import grader_page, packed_experiment, trial_form
from studio.web.http.deps import Config, PostedForm, ReadDB

router = APIRouter(prefix="/graders", include_in_schema=False)

_METHOD = next(method for method in METHODS.values() if learns_from_scores(method))
"""Of new experiments."""


@router.post("/train")
def open_form(request: Request, posted: PostedForm, db: ReadDB, config: Config) -> Response:
    """Open the form that the grader was built for, or a new one; nothing is started."""
    asked = trial_form.read(posted)
    built = grader_page.read_draft(db, config, posted, asked)
    if built.grader is None:
        return grader_page.show_builder(request, db, config, built, asked)
    draft = (
        draft_form.parse_draft(db, config, packed_experiment.unpack(built.experiment))
        if built.experiment
        else draft_form.draft_from_preset(db, config, _METHOD, "")
    )
    draft = draft_form.apply_values(draft, {"dataset": asked.dataset, GRADER: built.json})
    response = new_experiment_page.show_form(request, db, draft, {})
    response.headers["HX-Push-Url"] = new_experiment_page.draft_url(draft)
    return response
