"""Find a model's custom code and hash it. Nothing here runs it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.errors import InvalidError
from studio.weights import download_filter

_CONFIG_FILES = (download_filter.CONFIG_FILE, download_filter.TOKENIZER_CONFIG_FILE)
_AUTO_MAP = "auto_map"
_REPO_SEPARATOR = "--"
"""Separates the name of another repository from the class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """The code a model's files request to run."""

    requested: tuple[str, ...] = ()
    """Class references such as `modeling_own.OwnForCausalLM`; empty for known families."""
    files: tuple[str, ...] = ()
    """Python files beside the weights."""
    sha256: str = ""
    """Hash of all these files, so that a change to any of them changes it."""

    @property
    def external(self) -> tuple[str, ...]:
        """References to other repositories, whose code is not hashed here."""
        return tuple(reference for reference in self.requested if _REPO_SEPARATOR in reference)

    @property
    def missing_files(self) -> tuple[str, ...]:
        """The requested files that are missing."""
        required = {
            f"{reference.partition('.')[0]}.py"
            for reference in self.requested
            if _REPO_SEPARATOR not in reference
        }
        return tuple(sorted(required - set(self.files)))


def read(folder: Path) -> ModelCode:
    """Return the code that a folder's configs request to run.

    Raises:
        InvalidError: a config is unreadable or too large.

    """
    references = tuple(
        sorted(
            {reference for name in _CONFIG_FILES for reference in _requested_classes(folder / name)}
        )
    )
    if not references:
        return ModelCode()
    files = sorted(path for path in folder.rglob("*.py") if path.is_file())
    names = tuple(path.relative_to(folder).as_posix() for path in files)
    return ModelCode(requested=references, files=names, sha256=_hash_files(folder, names))


def _requested_classes(path: Path) -> Iterator[str]:
    auto_map = read_small_json(path).get(_AUTO_MAP)
    for entry in auto_map.values() if isinstance(auto_map, dict) else ():
        parts = entry if isinstance(entry, list) else [entry]
        yield from (part for part in parts if isinstance(part, str))


def read_small_json(path: Path) -> Mapping[str, Any]:
    """Return the content of a JSON file beside the weights; {} if it does not exist.

    Raises:
        InvalidError: it is too large, nested too deeply, unreadable, or not an object.

    """
    if not path.is_file():
        return {}
    try:
        is_small = path.stat().st_size <= download_filter.MAX_FILE_BYTES[path.name]
        content = json.loads(path.read_bytes()) if is_small else None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path.name} is not valid JSON.", param="base_model") from error
    if not isinstance(content, dict):
        raise InvalidError(f"{path.name} is too large or not a JSON object.", param="base_model")
    return content


def _hash_files(folder: Path, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        file_hash = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        digest.update(f"{file_hash} {name}\n".encode())
    return digest.hexdigest()
