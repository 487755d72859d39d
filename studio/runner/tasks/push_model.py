"""Upload an export to the hub: private unless asked otherwise, and resumable."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from studio.network.hub_client import Hub
from studio.network.hub_uploads import Upload
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.settings import Settings


class PushRequest(BaseModel):
    """What to upload, and where to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    repo: str
    """The repository, as `owner/name`."""
    private: bool = True
    message: str
    """Of the commit."""
    about: str = ""
    """What the task is for, as shown."""


def push(_folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Upload a folder. Return the repository and the commit.

    Raises:
        StudioError: The hub does not take it.

    """
    request, settings = PushRequest.model_validate(params), Settings()
    hub = Hub(
        endpoint=settings.hub_endpoint.rstrip("/"), token=settings.hub_token.get_secret_value()
    )
    files = {
        path.relative_to(request.folder).as_posix(): path
        for path in sorted(request.folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    upload = Upload(hub, request.repo, files, report)
    revision = upload.send(request.message, is_private=request.private)
    return {
        "repo": request.repo,
        "revision": revision,
        "url": f"{hub.endpoint}/{request.repo}/tree/{revision}",
        "bytes": upload.total,
        "private": request.private,
    }
