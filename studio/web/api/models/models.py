"""REST routes of base models, training methods and precisions, and of the search on the Hub."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from studio.db.session import read_session, unit_of_work
from studio.db.tables import Model
from studio.errors import NotFoundError
from studio.hardware import Hardware
from studio.intake.mapping import RowKind
from studio.methods import DEFAULT_METHOD, METHODS, RECIPE_ADAPTER, AnyRecipe, get_method
from studio.methods.base import Method
from studio.recipe.precision import PRECISIONS, Precision
from studio.services.accounts import owners
from studio.services.models import downloads, models, remote_code_trust
from studio.services.precision import incompatibilities, recommendation
from studio.services.workers import workers
from studio.web.api import conventions as api
from studio.web.api.system import system
from studio.web.api.system.system import TaskOut
from studio.web.http.deps import DB, Config, ConfigWithSecrets
from studio.weights.model_facts import ModelFacts

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/models", tags=["models"])


methods_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["methods"])

ModelQuery = Annotated[str, Query(max_length=1000)]


class TrainingMethodOut(api.Out):
    name: str
    title: str
    purpose: str
    """What it is for, in a few words."""
    summary: str
    row_kinds: list[RowKind]
    """The kinds of rows that it can train on."""
    objective: str
    """The metric that picks the best weights, ends runs early and guides sweeps."""
    presets: dict[str, dict[str, Any]]
    recipe_schema: dict[str, Any]
    """JSON Schema of the recipe, with bounds, defaults and help texts."""


class PrecisionOut(api.Out):
    name: str
    title: str
    summary: str
    weights: str
    compute: str
    gradients: str
    optimizer_states: str
    matmul: str
    """The input format of matrix products; `compute` is their output format."""
    matmul_of_gradients: str | None
    """The input format for gradients, if different."""
    optimizer: str
    master: str | None
    """The format of the optimizer's master weights, if it has any."""
    scaler: bool
    bytes_per_parameter: int
    param_dtype: str
    """With FSDP: the format in which GPUs all-gather weights."""
    reduce_dtype: str
    """With FSDP: the format in which gradients are reduced."""
    package: str
    """The optional package it requires, if any."""
    needs: str
    detected: str
    available: bool
    reason: str
    """Why it is not available on this machine."""
    caution: str
    """What to consider before using it on this machine."""
    recommended: bool
    """Whether it is recommended on this machine for the given model."""
    warnings: list[str]
    """Its effects on that model's weights, at the recipe's default learning rate."""


@methods_router.get("/methods")
def methods() -> api.Listing[TrainingMethodOut]:
    return api.Listing.complete([_method_out(method_spec) for method_spec in METHODS.values()])


@methods_router.get("/methods/{name}")
def method(name: str) -> TrainingMethodOut:
    return _method_out(get_method(name))


@methods_router.get("/precisions")
def precisions(
    db: DB, model: ModelQuery = "", method: str = DEFAULT_METHOD
) -> api.Listing[PrecisionOut]:
    """List the precision modes; with a model, also their effects on it."""
    facts = recommendation.load_model_facts(db, model) if model else ModelFacts()
    hardware, method_spec = workers.training_hardware(db), get_method(method)
    modes = [
        _precision_out(_example_recipe(method_spec, model, mode), facts, hardware)
        for mode in PRECISIONS.values()
    ]
    if not model:
        modes = [mode.model_copy(update={"warnings": []}) for mode in modes]
    return api.Listing.complete(modes)


def _method_out(spec: Method) -> TrainingMethodOut:
    return TrainingMethodOut(
        name=spec.name,
        title=spec.title,
        purpose=spec.purpose,
        summary=spec.summary,
        row_kinds=list(spec.trains_on),
        objective=spec.objective.key,
        presets={preset.name: dict(preset.values) for preset in spec.presets},
        recipe_schema=spec.recipe.model_json_schema(),
    )


def _example_recipe(spec: Method, model: str, mode: Precision) -> AnyRecipe:
    """Return a minimal recipe in a mode: full fine-tuning if the mode requires it."""
    adapter = {"adapter": {"kind": "full"}} if mode.is_for_all_weights else {}
    names = {"base_model": model or "any", "dataset": "any", "precision": mode.name}
    return RECIPE_ADAPTER.validate_python({"method": spec.name} | names | adapter)


def _precision_out(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> PrecisionOut:
    mode = PRECISIONS[recipe.precision]
    recommended = recommendation.recommend(recipe, facts, hardware)
    reasons = [mode.unsupported_reason(hardware)]
    reasons += [problem.message for problem in incompatibilities.check(recipe, facts, hardware)]
    reason = next(filter(None, reasons), "")
    computed = {
        "available": not reason,
        "reason": reason,
        "caution": mode.warning(hardware),
        "recommended": recommended.mode == mode,
        "warnings": list(recommended.warnings),
    }
    table = {name: getattr(mode, name) for name in PrecisionOut.model_fields.keys() - computed}
    return PrecisionOut.model_validate(table | computed)


ModelName = Annotated[str, Path(min_length=1, max_length=1000)]
_MAX_ID_DIGITS = 19
"""More digits than any id has."""


class FolderSource(api.Body):
    kind: Literal["folder"]
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """The absolute path of a folder on the studio's machine."""


class HubSource(api.Body):
    kind: Literal["hub"]
    id: Annotated[str, Field(min_length=1, max_length=200)]
    """The repository, as owner/name."""
    revision: Annotated[str, Field(max_length=200)] = ""
    """A branch, tag, pull request or commit; defaults to the newest. Pinned to its commit."""


class NewModel(api.Body):
    name: api.Name | None = None
    """The name that recipes use; defaults to the name of the folder or repository."""
    source: Annotated[FolderSource | HubSource, Field(discriminator="kind")]


class CodeTrust(api.Body):
    revision: Annotated[str, Field(min_length=1, max_length=200)]
    """The revision of the code you reviewed: `code.revision` of the model."""


class CodeOut(api.Out):
    """Code that ships with a model, and whether it may run."""

    revision: str
    """What consent applies to: the commit, or for a folder the checksum of the code."""
    wanted: list[str]
    files: list[str]
    consent: dict[str, Any] | None
    """Who allowed it and when; null if not allowed."""


class ModelOut(api.Out):
    id: int
    name: str
    kind: str
    """The source: starter, folder, hub or run."""
    location: str
    repo: str
    """The repository of a downloaded model."""
    revision: str
    """The commit that was downloaded."""
    run_id: int | None
    facts: dict[str, Any]
    code: CodeOut | None
    """Null if the model needs no remote code."""
    created_at: datetime


class HubModelOut(api.Out):
    """A model on the Hugging Face Hub."""

    id: str
    downloads: int
    likes: int
    licence: str
    gated: bool
    parameters: int | None
    bytes: int | None
    """Size of its weights; null if the hub does not report it."""
    has_safetensors: bool
    refusal: str
    """Why it cannot be used; empty if it can."""
    hint: str
    model_id: int | None
    """Its id in the studio, if it was added before."""


class HubSearchOut(api.Out):
    data: list[HubModelOut]


@router.get("")
def newest(db: DB, after: api.After = None, limit: api.Limit = 50) -> api.Listing[ModelOut]:
    rows = models.newest(db, limit=limit + 1, before=after)
    return api.make_page(rows, limit, [model_out(model) for model in rows])


@router.post("", status_code=201, response_model=ModelOut, responses={202: {"model": TaskOut}})
def add(new: NewModel, request: Request, config: ConfigWithSecrets) -> Any:  # noqa: ANN401 -- two schemas, one per status
    """Add a folder (201), or start downloading a model from the hub (202 with the task)."""
    engine = request.app.state.engine
    if isinstance(new.source, FolderSource):
        with unit_of_work(engine) as db:
            return model_out(models.add_folder(db, new.source.path, new.name or ""))
    # The hub may be slow: hold no database session while asking it.
    repo = downloads.inspect_repo(config, new.source.id, new.source.revision)
    with unit_of_work(engine) as db:
        task = downloads.enqueue(db, repo, new.name or "")
    body = system.task_out(task).model_dump_json()
    return Response(body, 202, media_type="application/json")


@router.get("/search")
def search(
    request: Request,
    config: ConfigWithSecrets,
    q: Annotated[str, Query(min_length=2, max_length=200)],
) -> HubSearchOut:
    """Search the hub for text generation models, most downloaded first."""
    results = downloads.search_hub(config, q)
    with read_session(request.app.state.engine) as db:
        return HubSearchOut(
            data=[_hub_model_out(offer) for offer in downloads.describe_models(db, results)]
        )


@router.post("/{model_id}/consent")
def allow(model_id: api.Id, agreement: CodeTrust, db: DB) -> ModelOut:
    """Allow one revision of a model's code to run. Downloads the code if needed."""
    model = models.get(db, model_id)
    remote_code_trust.grant(db, model, agreement.revision)
    downloads.enqueue_code(db, model)
    return model_out(model)


@router.delete("/{model_id}/consent")
def revoke(model_id: api.Id, db: DB) -> ModelOut:
    """Revoke consent: runs that start later cannot run the model's code."""
    model = models.get(db, model_id)
    remote_code_trust.revoke(model)
    return model_out(model)


@router.get("/{name:path}")
def show(name: ModelName, db: DB) -> ModelOut:
    """Return a model by its id or name."""
    return model_out(_find_model(db, name))


@router.delete("/{name:path}", status_code=204)
def remove(name: ModelName, db: DB, config: Config) -> None:
    """Remove a model from the list; downloaded files are deleted."""
    model_id = _find_model(db, name).id or 0
    owners.require(db, "models", [model_id])
    models.remove(db, model_id, config.models)


def model_out(model: Model) -> ModelOut:
    return ModelOut.model_validate(model.model_dump() | {"code": _code_out(model)})


def _find_model(db: DB, name: str) -> Model:
    """Return a model by its id, or by the name in recipes, which may contain a slash."""
    model = models.find_by_name(db, name)
    if model is None and name.isdecimal() and len(name) < _MAX_ID_DIGITS:
        return models.get(db, int(name))
    if model is None:
        raise NotFoundError(f"There is no model {name}.", hint="It may have been removed.")
    return model


def _code_out(model: Model) -> CodeOut | None:
    code, _why = remote_code_trust.try_inspect_code(model)
    if code is None or not code.requested:
        return None
    return CodeOut(
        revision=model.revision or code.sha256,
        wanted=list(code.requested),
        files=list(code.files),
        consent=model.consent,
    )


def _hub_model_out(offer: downloads.DownloadOffer) -> HubModelOut:
    hub_model = offer.found
    return HubModelOut(
        id=hub_model.id,
        downloads=hub_model.downloads,
        likes=hub_model.likes,
        licence=hub_model.licence,
        gated=hub_model.gated,
        parameters=offer.parameters,
        bytes=offer.bytes,
        has_safetensors=not offer.refusal,
        refusal=offer.refusal,
        hint=offer.hint,
        model_id=offer.local_model.id if offer.local_model else None,
    )
