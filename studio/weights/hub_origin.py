"""The Hugging Face origin of a model, written beside its weights after a complete download."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

ORIGIN_FILE = "origin.json"


class HubOrigin(BaseModel):
    """A commit of a repository on Hugging Face."""

    model_config = ConfigDict(frozen=True)

    repo: str
    commit: str
    files: dict[str, str]
    """The downloaded files, and the hash that each was verified with."""


def folder_name(repo: str, commit: str) -> str:
    """Return the name of a model's folder: one per commit."""
    return f"{repo.replace('/', '--')}-{commit[:12]}"


def read(folder: Path) -> HubOrigin | None:
    """Return a folder's origin, or None if the model was not completely downloaded."""
    try:
        return HubOrigin.model_validate_json((folder / ORIGIN_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write(folder: Path, origin: HubOrigin) -> None:
    (folder / ORIGIN_FILE).write_text(origin.model_dump_json(indent=1), encoding="utf-8")
