"""Choose which files of a model to download; find and hash its custom code. Nothing here runs it.

Only safetensors weights are accepted. Reading a pickle runs whatever code its author put in it, so
pickles are neither downloaded nor loaded.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.errors import InvalidError
from studio.weights.safetensors_headers import INDEX_FILE, WEIGHTS_FILE

CONFIG_FILE = "config.json"
MODEL_CARD_FILE = "README.md"
TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

MAX_FILE_BYTES: dict[str, int] = {
    CONFIG_FILE: 4 * 2**20,
    TOKENIZER_CONFIG_FILE: 16 * 2**20,
    "generation_config.json": 2**20,
    "special_tokens_map.json": 2**20,
    "added_tokens.json": 16 * 2**20,
    "tokenizer.json": 256 * 2**20,
    "vocab.json": 64 * 2**20,
    "vocab.txt": 64 * 2**20,
    "merges.txt": 64 * 2**20,
    "tokenizer.model": 64 * 2**20,
    "spiece.model": 64 * 2**20,
    "sentencepiece.bpe.model": 64 * 2**20,
    TEMPLATE_FILE: 2**20,
    "chat_template.json": 2**20,
    MODEL_CARD_FILE: 4 * 2**20,
    "LICENSE": 2**20,
    "LICENSE.txt": 2**20,
    "LICENSE.md": 2**20,
    INDEX_FILE: 32 * 2**20,
}
"""Maximum size in bytes of each file beside the weights; the largest known are a tenth of it."""

MAX_CODE_BYTES = 4 * 2**20
"""Maximum size of each file of a model's code."""
_SHARD_NAME = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_CODE_NAME = re.compile(r"[A-Za-z_]\w{0,99}\.py")
_PICKLE_EXTENSIONS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

CONVERTER_URL = "https://huggingface.co/spaces/safetensors/convert"
_CONVERT_COMMAND = (
    "python -c 'import sys; from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])' OLD NEW"
)


def is_weights(name: str) -> bool:
    return name == WEIGHTS_FILE or _SHARD_NAME.fullmatch(name) is not None


def is_code(name: str) -> bool:
    return _CODE_NAME.fullmatch(name) is not None


def max_bytes(name: str) -> int | None:
    """Return the maximum size of a file to download; weights have none."""
    return MAX_CODE_BYTES if is_code(name) else MAX_FILE_BYTES.get(name)


def has_weights(names: Collection[str]) -> bool:
    """Tell whether there are weights where transformers looks for them."""
    return WEIGHTS_FILE in names or (
        INDEX_FILE in names and any(_SHARD_NAME.fullmatch(name) for name in names)
    )


def is_pickled(names: Iterable[str]) -> bool:
    return any(name.endswith(_PICKLE_EXTENSIONS) for name in names)


def files_to_download(names: Collection[str]) -> list[str]:
    """Return the files to download: small ones first, as they may already rule the model out."""
    beside = [
        name
        for name in MAX_FILE_BYTES
        if name in names and (name != INDEX_FILE or WEIGHTS_FILE not in names)
    ]
    weights = (
        [WEIGHTS_FILE] if WEIGHTS_FILE in names else sorted(filter(_SHARD_NAME.fullmatch, names))
    )
    return [*beside, *weights]


def check_hub_files(name: str, names: Collection[str]) -> None:
    """Refuse a model on Hugging Face whose weights cannot be loaded.

    Raises:
        InvalidError: it has no weights, or only pickled ones.

    """
    if CONFIG_FILE in names and has_weights(names):
        return
    if is_pickled(names):
        raise InvalidError(
            f"{name} has no safetensors: its weights are pickled, and loading them can run code.",
            hint=f"Convert them at {CONVERTER_URL}, which opens a pull request; "
            "then download its revision, such as refs/pr/1.",
            param="source.id",
        )
    raise InvalidError(
        f"{name} has no trainable weights: no {CONFIG_FILE} with {WEIGHTS_FILE} or its shards.",
        hint="Look for the model in Transformers format; its name often ends in -hf.",
        param="source.id",
    )


def check_folder_files(folder: str, names: Collection[str]) -> None:
    """Refuse a folder with pickled weights only.

    Raises:
        InvalidError: there are pickled weights and no safetensors.

    """
    if is_pickled(names) and not any(name.endswith(".safetensors") for name in names):
        raise InvalidError(
            f"{folder} has no safetensors: its weights are pickled, and loading them can run code.",
            hint=f"If you trust their source, convert them once: {_CONVERT_COMMAND}",
            param="base_model",
        )


_CONFIG_FILES = (CONFIG_FILE, TOKENIZER_CONFIG_FILE)
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
        is_small = path.stat().st_size <= MAX_FILE_BYTES[path.name]
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
