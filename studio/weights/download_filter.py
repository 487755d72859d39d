"""Which files of a model are fetched: what training reads, and nothing that could run.

Weights are safetensors alone. What pickle wrote runs whatever its writer liked as soon as it is
read, and is neither fetched nor loaded.
"""

import re
from collections.abc import Collection, Iterable

from studio.errors import InvalidError
from studio.weights.safetensors_headers import INDEX, WHOLE

CONFIG = "config.json"
CARD = "README.md"
TEMPLATE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"

LARGEST: dict[str, int] = {
    CONFIG: 4 * 2**20,
    TOKENIZER_CONFIG: 16 * 2**20,
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
    TEMPLATE: 2**20,
    "chat_template.json": 2**20,
    CARD: 4 * 2**20,
    "LICENSE": 2**20,
    "LICENSE.txt": 2**20,
    "LICENSE.md": 2**20,
    INDEX: 32 * 2**20,
}
"""Bytes: how large each file beside the weights may be; the largest known are a tenth of it."""

CODE_LARGEST = 4 * 2**20
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_CODE = re.compile(r"[A-Za-z_]\w{0,99}\.py")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

CONVERTER = "https://huggingface.co/spaces/safetensors/convert"
_CONVERTED = (
    "python -c 'import sys; from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])' OLD NEW"
)


def is_weights(name: str) -> bool:
    return name == WHOLE or _SHARD.fullmatch(name) is not None


def is_code(name: str) -> bool:
    return _CODE.fullmatch(name) is not None


def has_weights(names: Collection[str]) -> bool:
    """Whether there are weights as transformers looks for them."""
    return WHOLE in names or (INDEX in names and any(_SHARD.fullmatch(one) for one in names))


def is_pickled(names: Iterable[str]) -> bool:
    return any(name.endswith(_PICKLED) for name in names)


def chosen(names: Collection[str]) -> list[str]:
    """Return the files to fetch: small ones first, for what they say may end it all."""
    beside = [name for name in LARGEST if name in names and (name != INDEX or WHOLE not in names)]
    weights = [WHOLE] if WHOLE in names else sorted(filter(_SHARD.fullmatch, names))
    return [*beside, *weights]


def refuse_hub(name: str, names: Collection[str]) -> None:
    """Refuse a model on the hub whose weights could not be loaded.

    Raises:
        InvalidError: it has none, or only such as pickle wrote.

    """
    if CONFIG in names and has_weights(names):
        return
    if is_pickled(names):
        raise InvalidError(
            f"{name} has no safetensors: its weights are pickled, and reading those can run code.",
            hint=f"Have them converted at {CONVERTER}, which makes a pull request; "
            "then download its revision, as in refs/pr/1.",
            param="source.id",
        )
    raise InvalidError(
        f"{name} has no weights that can be trained: no {CONFIG} with {WHOLE} or shards of it.",
        hint="Look for the model in transformers' own format, often named -hf.",
        param="source.id",
    )


def refuse_folder(folder: str, names: Collection[str]) -> None:
    """Refuse a folder whose weights only pickle can read.

    Raises:
        InvalidError: there are such weights and no safetensors.

    """
    if is_pickled(names) and not any(name.endswith(".safetensors") for name in names):
        raise InvalidError(
            f"{folder} has no safetensors: its weights are pickled, and reading those can run "
            "code.",
            hint=f"If you trust who made them, convert them once: {_CONVERTED}",
            param="base_model",
        )
