"""Models on screen: those that are here, one of them, and those of the hub."""

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
from studio.settings import Settings
from studio.web.http.deps import DB, Config, Keyed
from studio.web.rendering.render import asked_by_htmx, block, form_again, go, page
from studio.weights import family_limits, model_metadata

router = APIRouter(prefix="/models", include_in_schema=False)

ModelId = Annotated[int, Path(ge=1, lt=2**63)]
Words = Annotated[str, Query(max_length=200)]
Text = Annotated[str, Form(max_length=4096)]


@router.get("")
def listing(request: Request, config: Keyed, q: Words = "") -> Response:
    found = _searched(config, q)
    with read_session(request.app.state.engine) as db:
        hits = _hits(db, config, q, found)
        if asked_by_htmx(request):
            return block(request, "models/list.html", "hits", **hits)
        return page(request, "models/list.html", **_list(db), **hits)


@router.get("/landed")
def landed() -> Response:
    """Have the list shown anew once a download has ended."""
    return Response(status_code=204, headers={"HX-Redirect": "/models"})


@router.post("/folder")
def bring(request: Request, db: DB, config: Config, folder: Text = "", name: Text = "") -> Response:
    try:
        model = models.add_folder(db, folder.strip(), name.strip())
    except StudioError as error:
        again = _list(db, folder=folder, name=name, problem=error) | _hits(db, config, "", None)
        return form_again(request, "models/list.html", **again)
    return go(request, f"/models/{model.id}")


@router.post("/download")
def download(
    request: Request, config: Keyed, repo: Text = "", revision: Text = "", name: Text = ""
) -> Response:
    """Begin to fetch a model. The hub may be slow, so the database is asked after it."""
    engine = request.app.state.engine
    try:
        found = downloads.inspect_repo(config, repo.strip(), revision.strip())
        with unit_of_work(engine) as db:
            downloads.enqueue(db, found, name.strip())
    except StudioError as error:
        wish = {"repo": repo, "revision": revision, "refusal": error}
        with read_session(engine) as db:
            told = _list(db, wish=wish) | _hits(db, config, "", None)
        if asked_by_htmx(request):
            return block(request, "models/list.html", "wish", status=422, **told)
        return page(request, "models/list.html", status=422, **told)
    return go(request, "/models")


@router.get("/{model_id}")
def show(request: Request, model_id: ModelId, db: DB, config: Config) -> Response:
    model = models.get(db, model_id)
    return page(request, "models/show.html", **_show(db, config, model))


@router.get("/{model_id}/code")
def come(model_id: ModelId) -> Response:
    """Have the model shown anew once its code has come."""
    return Response(status_code=204, headers={"HX-Redirect": f"/models/{model_id}"})


@router.post("/{model_id}/consent")
def allow(request: Request, model_id: ModelId, db: DB, revision: Text = "") -> Response:
    model = models.get(db, model_id)
    remote_code_trust.grant(db, model, revision)
    downloads.enqueue_code(db, model)
    return go(request, f"/models/{model_id}#code")


@router.post("/{model_id}/consent/revoke")
def revoke(request: Request, model_id: ModelId, db: DB) -> Response:
    remote_code_trust.revoke(models.get(db, model_id))
    return go(request, f"/models/{model_id}#code")


@router.post("/{model_id}/remove")
def remove(request: Request, model_id: ModelId, db: DB, config: Config) -> Response:
    models.remove(db, model_id, config.models)
    return go(request, "/models")


def _searched(config: Settings, words: str) -> downloads.HubSearch | None:
    if len(words.strip()) < downloads.MIN_QUERY_LETTERS:
        return None
    return downloads.try_search_hub(config, words.strip())


def _hits(
    db: Session, config: Settings, words: str, found: downloads.HubSearch | None
) -> dict[str, Any]:
    return {
        "q": words,
        "offers": downloads.describe_models(db, found.found) if found else [],
        "trouble": found.trouble if found else None,
        "asked": found is not None,
        "host": downloads.hub_client(config).host,
    }


def _list(
    db: Session,
    *,
    folder: str = "",
    name: str = "",
    problem: StudioError | None = None,
    wish: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "models": models.newest(db),
        "on_the_way": downloads.list_downloads(db),
        "folder": folder,
        "name": name,
        "problem": problem,
        "wish": wish or {"repo": "", "revision": "", "refusal": None},
        **_misses(db),
    }


def _misses(db: Session, model: str | None = None) -> dict[str, Any]:
    """Gather how far estimates were off over all runs, or those of one model."""
    misses = estimates.list_errors(db, model)
    return {"misses": misses, "missed": estimates.median_error(misses)}


def _show(db: Session, config: Settings, model: Model) -> dict[str, Any]:
    """Gather what is known of a model; where its files cannot be read, why."""
    told: dict[str, Any] = {
        "model": model,
        "known": None,
        "card": None,
        "trouble": None,
        "code": None,
        "is_ours": models.is_downloaded(model, config.models),
        "is_here": models.is_local(model),
        "is_usable": _is_usable(model),
        "runs": models.list_runs(db, model),
        "lineage": models.list_ancestors(db, model),
        "warning": remote_code_trust.WARNING,
        "fetching": downloads.latest_code_task(db, model),
        "link": f"{downloads.hub_client(config).endpoint}/{model.repo}" if model.repo else "",
        **_misses(db, model.name),
    }
    if not told["is_here"]:
        return told
    try:
        known, folder = (
            recommendation.read_model_facts(models.model_dir(model)),
            models.model_dir(model),
        )
        told |= {
            "known": known,
            "card": model_metadata.read(folder),
            "code": remote_code_trust.inspect_code(model),
        }
        told["cares"] = list(
            family_limits.warnings_for(known.family, has_experts=bool(known.expert_parameters))
        )
    except (StudioError, OSError) as error:
        told["trouble"] = error if isinstance(error, StudioError) else StudioError(f"{error}.")
    return told


def _is_usable(model: Model) -> bool:
    """Whether a run could start from it now."""
    try:
        remote_code_trust.require_consent(model)
    except (StudioError, OSError):
        return False
    return models.is_local(model)
