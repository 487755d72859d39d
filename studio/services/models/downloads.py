"""Models of the hub: looked for, asked for, and taken among the others when they are whole."""

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
from studio.weights import download_filter, safetensors_headers

KIND = "download"
_LISTED_STATUSES = frozenset({TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED})
MAX_RESULTS = 20
"""How many models a search shows."""
MIN_QUERY_LETTERS = 2
"""How many letters are worth asking the hub about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadOffer:
    """A model on the hub, as a search shows it."""

    found: HubModel
    bytes: int | None
    """Of its weights; None where the hub does not know them."""
    parameters: int | None
    refusal: str
    """Why it cannot be used, or nothing."""
    hint: str
    here: Model | None
    """If it was downloaded before."""


def hub_client(settings: Settings) -> Hub:
    endpoint = settings.hub_endpoint.rstrip("/")
    return Hub(endpoint=endpoint, token=settings.hub_token.get_secret_value())


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSearch:
    """What came of a search."""

    found: list[HubModel]
    error: StudioError | None = None
    """Why there is no answer, if there is none."""


def search_hub(settings: Settings, words: str) -> list[HubModel]:
    """Ask the hub for models.

    Raises:
        UnavailableError: it cannot be reached.

    """
    return hub_client(settings).search(words, MAX_RESULTS)


def try_search_hub(settings: Settings, words: str) -> HubSearch:
    """Ask the hub for models; a page that shows more than these wants to be told of trouble."""
    try:
        return HubSearch(found=search_hub(settings, words))
    except StudioError as error:
        return HubSearch(found=[], error=error)


def describe_models(db: Session, found: Sequence[HubModel]) -> list[DownloadOffer]:
    """Say of each model on the hub whether it can be used, how large it is, and if it is here."""
    here = {one.repo: one for one in reversed(models.newest(db)) if one.repo}
    return [_describe_model(one, here.get(one.id)) for one in found]


def inspect_repo(settings: Settings, repo: str, revision: str) -> HubModel:
    """Ask the hub what a model consists of, and refuse what could not be used.

    Raises:
        StudioError: there is no such model, it is not for us, or has no safetensors.

    """
    return inspect_repo_on(hub_client(settings), repo, revision)


def inspect_repo_on(asked: Hub, repo: str, revision: str = "") -> HubModel:
    """Do what `inspect_repo` does, of a hub that was chosen before."""
    found = asked.model_info(repo, revision)
    download_filter.check_hub_files(found.id, found.file_names)
    if found.gated:
        # What a gated model consists of everybody may know; its files tell who is let in.
        config = next(one for one in found.files if one.name == download_filter.CONFIG_FILE)
        with asked.open(found.id, found.commit, config, 0):
            pass
    return found


def enqueue(db: Session, found: HubModel, name: str = "") -> Task:
    """Queue the download of a model at the commit that was found.

    Raises:
        ConflictError: it is here already, or the name is taken.

    """
    same = (
        one for one in models.newest(db) if (one.repo, one.revision) == (found.id, found.commit)
    )
    if here := next(same, None):
        raise ConflictError(
            f"{found.id} is here already, at this revision: {here.name}.", hint="Use that one."
        )
    called = name or (f"{found.id}@{found.commit[:8]}" if _is_taken(db, found.id) else found.id)
    if _is_taken(db, called):
        models.require_free_name(db, called)
    return _enqueue_download(db, found.id, found.commit, called)


def enqueue_code(db: Session, model: Model) -> Task | None:
    """Queue the download of the code that was allowed, where it is not here."""
    if not model.repo or not remote_code_trust.inspect_code(model).lacking:
        return None
    return _enqueue_download(db, model.repo, model.revision, model.name, code=True)


def list_downloads(db: Session) -> Sequence[Task]:
    """Return the downloads that go on, wait or have failed, newest first."""
    query = select(Task).where(Task.kind == KIND).order_by(col(Task.id).desc())
    last: dict[str, Task] = {}
    for chore in db.exec(query):
        last.setdefault(chore.subject, chore)
    return [one for one in last.values() if one.status in _LISTED_STATUSES]


def latest_code_task(db: Session, model: Model) -> Task | None:
    """Return the newest download of a model's code."""
    if not model.repo:
        return None
    found = (
        one
        for one in tasks.list_for_subject(db, _task_subject(model.repo, model.revision))
        if one.kind == KIND
    )
    return next((one for one in found if one.params["code"]), None)


def on_task_end(db: Session, chore: Task, result: dict[str, Any]) -> None:
    """Take a model that was fetched among the others, or its code."""
    if not result:
        return
    wish = chore.params
    if wish["code"]:
        model = models.find_by_name(db, wish["name"])
        if model is not None:
            remote_code_trust.record_downloaded_code(model)
        return
    old = models.find_by_name(db, wish["name"])
    if old is not None and old.kind == "hub" and not old.repo:
        # Named before, and never fetched: this is the model it meant.
        db.delete(old)
        db.flush()
    model = models.add(db, wish["name"], result["location"], kind="hub")
    model.repo, model.revision = result["repo"], wish["commit"]


def size_of(found: HubModel) -> int:
    """Return the bytes that will be fetched."""
    wanted = set(download_filter.files_to_download(found.file_names))
    return sum(one.size for one in found.files if one.name in wanted)


def _enqueue_download(
    db: Session, repo: str, commit: str, name: str, *, code: bool = False
) -> Task:
    params = {"repo": repo, "commit": commit, "name": name, "code": code}
    subject = _task_subject(repo, commit)
    last = next((one for one in tasks.list_for_subject(db, subject) if one.kind == KIND), None)
    if last is not None and last.status is TaskStatus.FAILED and last.params == params:
        # Tried again, it goes on with what has come; begun anew, it would not.
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


def _describe_model(found: HubModel, here: Model | None) -> DownloadOffer:
    known = [
        (safetensors_headers.DTYPES.get(code, ("", 0))[1], count)
        for code, count in found.parameters.items()
    ]
    refusal, hint = "", ""
    try:
        download_filter.check_hub_files(found.id, found.file_names)
    except InvalidError as error:
        refusal, hint = error.message, error.hint
    return DownloadOffer(
        found=found,
        bytes=sum(bits * count for bits, count in known) // 8 if known else None,
        parameters=sum(found.parameters.values()) if known else None,
        refusal=refusal,
        hint=hint,
        here=here,
    )
