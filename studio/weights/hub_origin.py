"""Where a model was fetched from: one document beside its weights, written when it is whole."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

ORIGIN_FILE = "origin.json"


class HubOrigin(BaseModel):
    """A commit of a repository on the hub."""

    model_config = ConfigDict(frozen=True)

    repo: str
    commit: str
    files: dict[str, str]
    """Each file that was fetched, and the hash it was checked by."""


def folder_name(repo: str, commit: str) -> str:
    """Return what the folder of a model is called: one for each commit."""
    return f"{repo.replace('/', '--')}-{commit[:12]}"


def read(folder: Path) -> HubOrigin | None:
    """Return where a folder's model is from; None unless it was fetched, and whole."""
    try:
        return HubOrigin.model_validate_json((folder / ORIGIN_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, origin: HubOrigin) -> None:
    (folder / ORIGIN_FILE).write_text(origin.model_dump_json(indent=1), encoding="utf-8")
