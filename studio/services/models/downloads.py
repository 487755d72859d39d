"""Search models on the Hugging Face Hub, download them, and register complete downloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.db.states import TaskStatus
from studio.db.tables import Model
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, StudioError
from studio.network.hub_client import Hub, HubModel
from studio.services.models import models, remote_code_trust
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.weights import model_files, safetensors_headers

KIND = "download"
_LISTED_STATUSES = frozenset({TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED})
MAX_RESULTS = 20
"""Most models that a search returns."""
MIN_QUERY_LETTERS = 2
"""Fewest letters for which a search asks the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadOffer:
    """A model on the hub, as a search result."""

    found: HubModel
    bytes: int | None
    """Size of its weights; None where the hub does not know it."""
    parameters: int | None
    refusal: str
    """Why it cannot be used; empty if it can."""
    hint: str
    local_model: Model | None
    """The local model, if it was downloaded before."""


def hub_client(settings: Settings) -> Hub:
    endpoint = settings.hub_endpoint.rstrip("/")
    return Hub(endpoint=endpoint, token=settings.hub_token.get_secret_value())


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSearch:
    """The result of a search."""

    found: list[HubModel]
    error: StudioError | None = None
    """Why the search failed, if it did."""


def search_hub(settings: Settings, query: str) -> list[HubModel]:
    """Search the hub for models.

    Raises:
        UnavailableError: The hub cannot be reached.

    """
    return hub_client(settings).search(query, MAX_RESULTS)


def try_search_hub(settings: Settings, query: str) -> HubSearch:
    """Search the hub for models; return an error instead of raising it, for a page to show."""
    try:
        return HubSearch(found=search_hub(settings, query))
    except StudioError as error:
        return HubSearch(found=[], error=error)


def describe_models(db: Session, hub_models: Sequence[HubModel]) -> list[DownloadOffer]:
    """Return for each model whether it can be used, its size, and the local copy, if any."""
    local_models = {model.repo: model for model in reversed(models.newest(db)) if model.repo}
    return [_describe_model(model, local_models.get(model.id)) for model in hub_models]


def inspect_repo(settings: Settings, repo: str, revision: str) -> HubModel:
    """Return a model's files on the hub; refuse a model that cannot be used.

    Raises:
        StudioError: There is no such model, access is denied, or it has no safetensors.

    """
    return inspect_repo_on(hub_client(settings), repo, revision)


def inspect_repo_on(hub: Hub, repo: str, revision: str = "") -> HubModel:
    """Do what `inspect_repo` does, with a given hub client."""
    hub_model = hub.model_info(repo, revision)
    model_files.check_hub_files(hub_model.id, hub_model.file_names)
    if hub_model.gated:
        # Anyone can list a gated model's files; reading one shows whether access is granted.
        config = next(file for file in hub_model.files if file.name == model_files.CONFIG_FILE)
        with hub.open(hub_model.id, hub_model.commit, config, 0):
            pass
    return hub_model


def enqueue(db: Session, hub_model: HubModel, name: str = "") -> Task:
    """Queue the download of a model at the commit that was found.

    Raises:
        ConflictError: It is downloaded already, or the name is taken.

    """
    same = (
        model
        for model in models.newest(db)
        if (model.repo, model.revision) == (hub_model.id, hub_model.commit)
    )
    if existing := next(same, None):
        raise ConflictError(
            f"{hub_model.id} is already downloaded at this revision, as {existing.name}.",
            hint="Use that model.",
        )
    model_name = name or (
        f"{hub_model.id}@{hub_model.commit[:8]}" if _is_taken(db, hub_model.id) else hub_model.id
    )
    if _is_taken(db, model_name):
        models.require_free_name(db, model_name)
    return _enqueue_download(db, hub_model.id, hub_model.commit, model_name)


def enqueue_code(db: Session, model: Model) -> Task | None:
    """Queue the download of a model's trusted code, if it is not here."""
    if not model.repo or not remote_code_trust.inspect_code(model).missing_files:
        return None
    return _enqueue_download(db, model.repo, model.revision, model.name, code=True)


def list_downloads(db: Session) -> Sequence[Task]:
    """Return running, queued and failed downloads, newest first."""
    query = select(Task).where(Task.kind == KIND).order_by(col(Task.id).desc())
    last: dict[str, Task] = {}
    for task in db.exec(query):
        last.setdefault(task.subject, task)
    return [download for download in last.values() if download.status in _LISTED_STATUSES]


def latest_code_task(db: Session, model: Model) -> Task | None:
    """Return the newest download of a model's code."""
    if not model.repo:
        return None
    subject = _task_subject(model.repo, model.revision)
    return tasks.latest(db, KIND, subject, lambda task: task.params["code"])


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    """Register a downloaded model, or record its downloaded code."""
    if not result:
        return
    params = task.params
    if params["code"]:
        model = models.find_by_name(db, params["name"])
        if model is not None:
            remote_code_trust.record_downloaded_code(model)
        return
    old = models.find_by_name(db, params["name"])
    if old is not None and old.kind == "hub" and not old.repo:
        # A placeholder that was added by name only: replace it with the download.
        db.delete(old)
        db.flush()
    model = models.add(db, params["name"], result["location"], kind="hub")
    model.repo, model.revision = result["repo"], params["commit"]


def _enqueue_download(
    db: Session, repo: str, commit: str, name: str, *, code: bool = False
) -> Task:
    params = {"repo": repo, "commit": commit, "name": name, "code": code}
    subject = _task_subject(repo, commit)
    last = tasks.latest(db, KIND, subject)
    if last is not None and last.status is TaskStatus.FAILED and last.params == params:
        # A retry resumes the partial download; a new task would start from zero.
        tasks.retry(last)
        return last
    return tasks.enqueue(db, KIND, subject, params)


def _task_subject(repo: str, commit: str) -> str:
    return f"hub:{repo}@{commit}"


def _is_taken(db: Session, name: str) -> bool:
    model = models.find_by_name(db, name)
    return model is not None and not (
        model.kind == "hub" and not Path(model.location).is_absolute()
    )


def _describe_model(hub_model: HubModel, local_model: Model | None) -> DownloadOffer:
    dtype_counts = [
        (safetensors_headers.DTYPES.get(code, ("", 0))[1], count)
        for code, count in hub_model.parameters.items()
    ]
    refusal, hint = "", ""
    try:
        model_files.check_hub_files(hub_model.id, hub_model.file_names)
    except InvalidError as error:
        refusal, hint = error.message, error.hint
    return DownloadOffer(
        found=hub_model,
        bytes=sum(bits * count for bits, count in dtype_counts) // 8 if dtype_counts else None,
        parameters=sum(hub_model.parameters.values()) if dtype_counts else None,
        refusal=refusal,
        hint=hint,
        local_model=local_model,
    )
