"""Pages of models: the local models, one model, and search on the Hugging Face Hub."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Model
from studio.errors import StudioError
from studio.services.estimates import estimates
from studio.services.models import downloads, models, remote_code_trust
from studio.services.precision import recommendation
from studio.services.runs import continuation
from studio.settings import Settings
from studio.web.http.deps import DB, Config, ConfigWithSecrets
from studio.web.rendering.render import block, page, redirect, refused_form, wants_fragment
from studio.weights import family_limits, model_metadata

router = APIRouter(prefix="/models", include_in_schema=False)

ModelId = Annotated[int, Path(ge=1, lt=2**63)]
SearchText = Annotated[str, Query(max_length=200)]
FormText = Annotated[str, Form(max_length=4096)]


@router.get("")
def listing(request: Request, config: ConfigWithSecrets, q: SearchText = "") -> Response:
    search = search_hub(config, q)
    with read_session(request.app.state.engine) as db:
        context = search_context(db, config, q, search)
        if wants_fragment(request):
            return block(request, "models/list.html", "hits", **context)
        return page(request, "models/list.html", **_list_context(db), **context)


@router.get("/landed")
def after_download() -> Response:
    """Make htmx reload the list after a download."""
    return Response(status_code=204, headers={"HX-Redirect": "/models"})


@router.post("/folder")
def add_folder(
    request: Request, db: DB, config: Config, folder: FormText = "", name: FormText = ""
) -> Response:
    try:
        model = models.add_folder(db, folder.strip(), name.strip())
    except StudioError as error:
        context = _list_context(db, folder=folder, name=name, problem=error) | search_context(
            db, config, "", None
        )
        return refused_form(request, "models/list.html", **context)
    return redirect(request, f"/models/{model.id}")


@router.post("/download")
def download(
    request: Request,
    config: ConfigWithSecrets,
    repo: FormText = "",
    revision: FormText = "",
    name: FormText = "",
) -> Response:
    """Queue a download. The Hub may be slow, so the database is opened only after its answer."""
    engine = request.app.state.engine
    try:
        repo_info = downloads.inspect_repo(config, repo.strip(), revision.strip())
        with unit_of_work(engine) as db:
            downloads.enqueue(db, repo_info, name.strip())
    except StudioError as error:
        form_state = {"repo": repo, "revision": revision, "refusal": error}
        with read_session(engine) as db:
            context = _list_context(db, download_form=form_state) | search_context(
                db, config, "", None
            )
        if wants_fragment(request):
            return block(request, "models/list.html", "download_form", status=422, **context)
        return page(request, "models/list.html", status=422, **context)
    return redirect(request, "/models")


@router.get("/{model_id}")
def show(request: Request, model_id: ModelId, db: DB, config: Config) -> Response:
    model = models.get(db, model_id)
    return page(request, "models/show.html", **_model_context(db, config, model))


@router.get("/{model_id}/code")
def after_code_download(model_id: ModelId) -> Response:
    """Make htmx reload the model after a download of its code."""
    return Response(status_code=204, headers={"HX-Redirect": f"/models/{model_id}"})


@router.post("/{model_id}/consent")
def trust_code(request: Request, model_id: ModelId, db: DB, revision: FormText = "") -> Response:
    model = models.get(db, model_id)
    remote_code_trust.grant(db, model, revision)
    downloads.enqueue_code(db, model)
    return redirect(request, f"/models/{model_id}#code")


@router.post("/{model_id}/consent/revoke")
def revoke_trust(request: Request, model_id: ModelId, db: DB) -> Response:
    remote_code_trust.revoke(models.get(db, model_id))
    return redirect(request, f"/models/{model_id}#code")


@router.post("/{model_id}/remove")
def remove(request: Request, model_id: ModelId, db: DB, config: Config) -> Response:
    models.remove(db, model_id, config.models)
    return redirect(request, "/models")


def search_hub(config: Settings, words: str) -> downloads.HubSearch | None:
    """Search the Hub; return None for too few letters."""
    if len(words.strip()) < downloads.MIN_QUERY_LETTERS:
        return None
    return downloads.try_search_hub(config, words.strip())


def search_context(
    db: Session, config: Settings, words: str, search: downloads.HubSearch | None
) -> dict[str, Any]:
    """Return the template context of a search."""
    return {
        "q": words,
        "offers": downloads.describe_models(db, search.found) if search else [],
        "trouble": search.error if search else None,
        "asked": search is not None,
        "host": downloads.hub_client(config).host,
    }


def _list_context(
    db: Session,
    *,
    folder: str = "",
    name: str = "",
    problem: StudioError | None = None,
    download_form: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "models": models.newest(db),
        "on_the_way": downloads.list_downloads(db),
        "folder": folder,
        "name": name,
        "problem": problem,
        "download_form": download_form or {"repo": "", "revision": "", "refusal": None},
        **_estimate_errors(db),
    }


def _estimate_errors(db: Session, model: str | None = None) -> dict[str, Any]:
    """Return the errors of past estimates, over all runs or those of one model."""
    errors = estimates.list_errors(db, model)
    return {"misses": errors, "missed": estimates.median_error(errors)}


def _model_context(db: Session, config: Settings, model: Model) -> dict[str, Any]:
    """Return the template context of a model; if its files cannot be read, with the reason."""
    context: dict[str, Any] = {
        "model": model,
        "known": None,
        "card": None,
        "trouble": None,
        "code": None,
        "is_ours": models.is_downloaded(model, config.models),
        "is_here": models.is_local(model),
        "is_usable": _is_usable(model),
        "runs": models.list_runs(db, model),
        "lineage": continuation.trained_by(db, model),
        "warning": remote_code_trust.WARNING,
        "fetching": downloads.latest_code_task(db, model),
        "link": f"{downloads.hub_client(config).endpoint}/{model.repo}" if model.repo else "",
        **_estimate_errors(db, model.name),
    }
    if not context["is_here"]:
        return context
    try:
        facts, folder = (
            recommendation.read_model_facts(models.model_dir(model)),
            models.model_dir(model),
        )
        context |= {
            "known": facts,
            "card": model_metadata.read(folder),
            "code": remote_code_trust.inspect_code(model),
        }
        context["cares"] = list(
            family_limits.warnings_for(facts.family, has_experts=bool(facts.expert_parameters))
        )
    except (StudioError, OSError) as error:
        context["trouble"] = error if isinstance(error, StudioError) else StudioError(f"{error}.")
    return context


def _is_usable(model: Model) -> bool:
    """Whether a run could start from it now."""
    try:
        remote_code_trust.require_consent(model)
    except (StudioError, OSError):
        return False
    return models.is_local(model)
