"""Metadata beside a model's weights: its licence, context length, chat template and origin.

Its files are untrusted, so they are limited in size and shown as plain text only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from studio.errors import InvalidError
from studio.weights import model_config, model_files
from studio.weights.model_files import read_small_json

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


def read_origin(folder: Path) -> HubOrigin | None:
    """Return a folder's origin, or None if the model was not completely downloaded."""
    try:
        return HubOrigin.model_validate_json((folder / ORIGIN_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_origin(folder: Path, origin: HubOrigin) -> None:
    (folder / ORIGIN_FILE).write_text(origin.model_dump_json(indent=1), encoding="utf-8")


_FRONT_MATTER = re.compile(r"\A---\s*\n(.{0,100000}?)\n---\s*(?:\n|\Z)", re.DOTALL)
_CARD_BYTES = 200_000
"""Bytes of a model card that are read: the front matter is at its top."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "context_length", "n_ctx", "seq_length")
_PLAIN_NAME = re.compile(r"[\w .,+()/:-]{1,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """Metadata of a model beside its weights."""

    licence: str = ""
    context_length: int | None = None
    """Context length in tokens; None if its config does not give it."""
    template_file: str = ""
    """The file with its chat template, or ""."""
    bytes: int = 0
    """Total size of the files in its folder."""


def read(folder: Path) -> ModelMetadata:
    """Return the metadata of the model in a folder.

    Raises:
        InvalidError: a file is unreadable, too large or nested too deeply.

    """
    return ModelMetadata(
        licence=_read_licence(folder / model_files.MODEL_CARD_FILE),
        context_length=_context_length(read_small_json(folder / model_files.CONFIG_FILE)),
        template_file=_template_file(folder),
        bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )


def _read_licence(path: Path) -> str:
    """Return the licence in a model card's front matter, or ""."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        front = _FRONT_MATTER.match(file.read(_CARD_BYTES).decode("utf-8", "replace"))
    try:
        # Only scalars and collections; aliases could expand a small card to a huge one.
        metadata = yaml.load(front[1], _NoAliasLoader) if front else None  # noqa: S506 -- a safe loader  # nosec B506
    except (yaml.YAMLError, RecursionError, ValueError):
        return ""
    values = metadata if isinstance(metadata, dict) else {}
    custom_name = values.get("license_name") if values.get("license") == "other" else None
    licence = custom_name or values.get("license")
    return licence if isinstance(licence, str) and _PLAIN_NAME.fullmatch(licence) else ""


class _NoAliasLoader(yaml.SafeLoader):
    """YAML without aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("No aliases here.")
        return super().compose_node(parent, index)


def _context_length(config: Mapping[str, Any]) -> int | None:
    inner = config.get("text_config")
    levels = (config, inner if isinstance(inner, dict) else {})
    candidates = (level.get(name) for level in levels for name in _CONTEXT_KEYS)
    lengths = (
        length
        for length in candidates
        if type(length) is int and 0 < length <= model_config.MAX_VALUES["n_positions"]
    )
    return next(lengths, None)


def _template_file(folder: Path) -> str:
    """Return the file with the chat template transformers would use, without reading it all."""
    for name in (model_files.TEMPLATE_FILE, "chat_template.json"):
        if (folder / name).is_file():
            return name
    template = read_small_json(folder / model_files.TOKENIZER_CONFIG_FILE).get("chat_template")
    return model_files.TOKENIZER_CONFIG_FILE if template else ""


def check_file_sizes(folder: Path) -> None:
    """Refuse a folder with an unusually large file beside the weights.

    Raises:
        InvalidError: a file exceeds its limit.

    """
    for name, limit in model_files.MAX_FILE_BYTES.items():
        path = folder / name
        if path.is_file() and path.stat().st_size > limit:
            raise InvalidError(
                f"{name} is unusually large: {path.stat().st_size / 2**20:,.0f} MB.",
                hint="Download the model again from a source you trust.",
                param="base_model",
            )
