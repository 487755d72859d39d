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

    wanted: tuple[str, ...] = ()
    """Class references such as `modeling_own.OwnForCausalLM`; empty for known families."""
    files: tuple[str, ...] = ()
    """Python files beside the weights."""
    sha256: str = ""
    """Hash of all these files, so that a change to any of them changes it."""

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """References to other repositories, whose code is not hashed here."""
        return tuple(one for one in self.wanted if _REPO_SEPARATOR in one)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The requested files that are missing."""
        asked = {f"{one.partition('.')[0]}.py" for one in self.wanted if _REPO_SEPARATOR not in one}
        return tuple(sorted(asked - set(self.files)))


def read(folder: Path) -> ModelCode:
    """Return the code that a folder's configs request to run.

    Raises:
        InvalidError: a config is unreadable or too large.

    """
    wanted = tuple(
        sorted({one for name in _CONFIG_FILES for one in _requested_classes(folder / name)})
    )
    if not wanted:
        return ModelCode()
    files = sorted(path for path in folder.rglob("*.py") if path.is_file())
    names = tuple(path.relative_to(folder).as_posix() for path in files)
    return ModelCode(wanted=wanted, files=names, sha256=_hash_files(folder, names))


def _requested_classes(path: Path) -> Iterator[str]:
    asked = read_small_json(path).get(_AUTO_MAP)
    for one in asked.values() if isinstance(asked, dict) else ():
        parts = one if isinstance(one, list) else [one]
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
        told = json.loads(path.read_bytes()) if is_small else None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{path.name} is not valid JSON.", param="base_model") from error
    if not isinstance(told, dict):
        raise InvalidError(f"{path.name} is too large or not a JSON object.", param="base_model")
    return told


def _hash_files(folder: Path, names: tuple[str, ...]) -> str:
    whole = hashlib.sha256()
    for name in names:
        content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        whole.update(f"{content} {name}\n".encode())
    return whole.hexdigest()
