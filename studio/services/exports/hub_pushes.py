"""Uploads of exports to the Hugging Face hub: queue one, list those of an export."""

import json
import re
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session, col, select

from studio.db.accounts import Secret
from studio.db.states import TaskStatus
from studio.db.tables import Run
from studio.db.tasks import Export, Task
from studio.errors import ConflictError, InvalidError
from studio.network.hub_client import REPO_ID
from studio.protocols.run_dir import RunDir
from studio.services.exports import exports
from studio.services.tasks import tasks
from studio.settings import Settings

KIND = "push"


@dataclass(frozen=True, slots=True)
class HubPush:
    """One upload of an export; done, under way, or failed."""

    task: Task

    @property
    def repo(self) -> str:
        return str(self.task.params["repo"])

    @property
    def is_private(self) -> bool:
        return bool(self.task.params["private"])

    @property
    def revision(self) -> str:
        """The commit on the hub; empty until it has succeeded."""
        return str(self.task.result.get("revision", ""))

    @property
    def url(self) -> str:
        """Where the commit can be seen; empty until it has succeeded."""
        return str(self.task.result.get("url", ""))

    @property
    def is_going(self) -> bool:
        return not self.task.status.is_final

    @property
    def finished_at(self) -> datetime | None:
        return self.task.finished_at


def create(
    db: Session, settings: Settings, run_id: int, export_id: int, repo: str, *, is_private: bool
) -> HubPush:
    """Queue the upload of an export to a repository, which is created if there is none.

    A push that failed to the same repository is tried again: what has arrived is not sent again.

    Raises:
        ConflictError: The export is not finished or on its way elsewhere, or this studio has no
            token of the hub.
        InvalidError: The name has not the form owner/name.
        NotFoundError: There is no such export.

    """
    export = exports.get(db, run_id, export_id)
    if export.status is not TaskStatus.SUCCEEDED:
        raise ConflictError(
            f"Export {export_id} is {export.status}.", hint="Wait until it has succeeded."
        )
    _require_repo_name(repo)
    if not has_token(db, settings):
        raise ConflictError(
            "This studio has no Hugging Face token.",
            hint="Set one with write access: Settings, Secrets, or STUDIO_HUB_TOKEN.",
        )
    run = db.get_one(Run, run_id)
    params = {
        "folder": str(RunDir(settings.runs / str(run_id)).export(export_id).files),
        "repo": repo,
        "private": is_private,
        "message": f"Add {run.name}, exported in {export.dtype} by Mantissa Studio",
        "about": f"{repo} (run {run_id}, export {export_id})",
    }
    subject = exports.task_subject(export_id)
    last = tasks.latest(db, KIND, subject)
    if last is not None and not last.status.is_final and last.params != params:
        raise ConflictError(
            f"Export {export_id} is being uploaded to {last.params['repo']}.",
            hint="Wait until it is there, or cancel that.",
        )
    if last is not None and last.status is TaskStatus.FAILED and last.params == params:
        tasks.retry(last)
        return HubPush(last)
    return HubPush(tasks.enqueue(db, KIND, subject, params))


def list_for_export(db: Session, export: Export) -> list[HubPush]:
    """Return the pushes of an export, newest first."""
    found = tasks.list_for_subject(db, exports.task_subject(export.id or 0))
    return [HubPush(task) for task in found if task.kind == KIND]


def suggest_repo(db: Session, run: Run) -> str:
    """Return a name for the repository of a run's model, with the owner of the last push."""
    query = select(Task).where(Task.kind == KIND).order_by(col(Task.id).desc()).limit(1)
    last = db.exec(query).first()
    owner = str(last.params["repo"]).partition("/")[0] if last else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-.") or f"run-{run.id}"
    return f"{owner}/{name[:90]}" if owner else ""


def has_token(db: Session, settings: Settings) -> bool:
    """Whether this studio has a token of the hub."""
    return bool(settings.secret_value("hub_token")) or db.get(Secret, "hub_token") is not None


def add_to_manifest(db: Session, run: Run, manifest: str) -> str:
    """Add to a run's manifest, as JSON, which commits of the hub have its exports."""
    published = [
        {
            "export": export.id,
            "repo": push.repo,
            "revision": push.revision,
            "private": push.is_private,
            "at": push.finished_at.isoformat() if push.finished_at else None,
        }
        for export in exports.list_for_run(db, run.id or 0)
        for push in list_for_export(db, export)
        if push.revision
    ]
    if not published:
        return manifest
    return json.dumps(json.loads(manifest) | {"published": published}, indent=2, ensure_ascii=False)


def _require_repo_name(name: str) -> None:
    if not REPO_ID.fullmatch(name):
        raise InvalidError(
            f"{name[:200]} does not have the form owner/name.",
            hint="The owner is your name on Hugging Face, or that of an organisation.",
            param="repo",
        )
