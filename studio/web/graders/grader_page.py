"""The graders page: build a grader without code, and try it before anything is trained with it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import InvalidError, StudioError
from studio.graders.items import GradedRow
from studio.graders.schema import parse_grader
from studio.protocols.grader_trials import TrialJob
from studio.services.graders import columns, judges, trials
from studio.services.graders.purposes import PURPOSES
from studio.services.graders.trials import Source, TrialRequest
from studio.settings import Settings
from studio.web.api import graders
from studio.web.api.graders import Outcome
from studio.web.graders import grader_form, packed_experiment, trial_form
from studio.web.graders.grader_form import GraderDraft
from studio.web.http.deps import Config, PostedForm, ReadDB
from studio.web.rendering.render import block, page, wants_fragment

router = APIRouter(prefix="/graders", include_in_schema=False)

TEMPLATE = "graders/show.html"
RESULT = "graders/trial.html"


TrialId = Annotated[int, Path(ge=1, lt=2**63)]
Name = Annotated[str, Query(max_length=1000)]


@router.get("")
def show(
    request: Request, db: ReadDB, config: Config, dataset: Name = "", model: Name = ""
) -> Response:
    names = trials.list_datasets(db)
    chosen = dataset if dataset in names else next(iter(names), "")
    draft = grader_form.start(_first_rows(db, config, chosen))
    return show_builder(request, db, config, draft, TrialRequest(dataset=chosen, model=model))


@router.post("/form")
def update_form(request: Request, posted: PostedForm, db: ReadDB, config: Config) -> Response:
    """Redraw the builder after a change of its fields, or open the grader of an experiment."""
    asked = trial_form.read(posted)
    text = packed_experiment.find_grader(posted)
    if text is not None:
        draft = grader_form.open_json(text, _first_rows(db, config, asked.dataset))
        draft = replace(draft, experiment=packed_experiment.pack(posted))
        response = show_builder(request, db, config, draft, asked)
        response.headers["HX-Push-Url"] = f"/graders?dataset={quote(asked.dataset)}"
        return response
    draft = read_draft(db, config, posted, asked)
    if wants_fragment(request):
        return block(request, TEMPLATE, "builder", **_builder_context(db, config, draft, asked))
    return show_builder(request, db, config, draft, asked)


@router.post("/try")
async def try_grader(request: Request, posted: PostedForm) -> Response:
    """Grade answers, or let a model write them in the background, and show what came of it."""
    try:
        asked = trial_form.read(posted)
        grader = grader_form.read_grader(posted)
        outcome = await graders.run(request, grader, asked)
    except StudioError as error:
        return block(request, RESULT, "trial", **_result_context(None, None) | {"error": error})
    return block(request, RESULT, "trial", **_result_context(outcome, asked.source))


@router.get("/trials/{task_id}")
def show_trial(request: Request, task_id: TrialId, db: ReadDB, config: Config) -> Response:
    """Show how the answers of a model were graded; opened by itself, with the grader."""
    task = trials.get(db, task_id)
    outcome = Outcome(task, trials.find_result(task))
    if wants_fragment(request):
        return block(request, RESULT, "outcome", **_result_context(outcome, "model"))
    draft = grader_form.from_grader(parse_grader(task.params["grader"]))
    job = TrialJob.model_validate(task.params)
    asked = trials.describe(job)
    return show_builder(request, db, config, draft, asked, outcome)


def read_draft(
    db: Session, config: Settings, posted: Mapping[str, Any], asked: TrialRequest
) -> GraderDraft:
    """Return the grader that was posted; its problems are part of it."""
    draft = grader_form.read(
        posted,
        columns.list_columns(_first_rows(db, config, asked.dataset)),
        are_rows_new=asked.dataset != posted.get("dataset_was"),
    )
    return replace(draft, experiment=str(posted.get("experiment", "")))


def show_builder(
    request: Request,
    db: Session,
    config: Settings,
    draft: GraderDraft,
    asked: TrialRequest,
    outcome: Outcome | None = None,
) -> Response:
    context = _builder_context(db, config, draft, asked) | _result_context(outcome, asked.source)
    return page(request, TEMPLATE, **context)


def _builder_context(
    db: Session, config: Settings, draft: GraderDraft, asked: TrialRequest
) -> dict[str, Any]:
    known = columns.list_columns(_first_rows(db, config, asked.dataset))
    return {
        "draft": draft,
        "asked": asked,
        "purposes": PURPOSES,
        "columns": known,
        "references": [columns.template(name) for name in known],
        "datasets": trials.list_datasets(db),
        "models": judges.list_chat_models(db),
        "options": {
            "judge": judges.list_judges(db, config),
            "reward": judges.list_reward_models(db),
        },
        "limits": trials,
    }


def _result_context(outcome: Outcome | None, source: Source | None) -> dict[str, Any]:
    result = outcome.result if outcome else None
    is_finished = result is not None
    return {
        "chore": outcome.task if outcome and not is_finished else None,
        "result": result,
        "verdict": trials.judge_result(source, result) if source and result else None,
        "source": source,
        "error": None,
        "wait": None,
    }


def _first_rows(db: Session, config: Settings, name: str) -> list[GradedRow]:
    """Return the first rows of a dataset; none if there is none of that name."""
    try:
        return trials.first_rows(db, config, name) if name else []
    except InvalidError:
        return []
