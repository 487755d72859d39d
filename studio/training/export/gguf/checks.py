"""Compare a GGUF file with the run that it was made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from studio.errors import InvalidError
from studio.training.evaluation.perplexity import Perplexity
from studio.training.export.dtype_conversion import ConversionStats
from studio.training.export.gguf import llama_cpp
from studio.training.models.eval_context import evaluation_mode

MAX_ROWS = 200
"""How many rows are tokenised by both tokenizers."""
_COUNTED_TEXTS = 50
"""How many of them llama.cpp tokenises, too."""

_LIMITS = {"float32": 1e-5, "float16": 1e-3}
"""The most that the loss may change, in nats per token, or this share of it if that is more."""
_SHARES = {"float32": 1e-5, "float16": 1e-3, "q8_0": 0.01}
_LLAMA_CPP_LIMITS = {"float32": 0.01, "float16": 0.02, "q8_0": 0.1}
"""The same for llama.cpp, which computes with other roundings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedTexts:
    """Rows as the run reads them, and as the file's chat template writes them."""

    ids: Sequence[Sequence[int]]
    texts: Sequence[str]


def compare_weights(model: PreTrainedModel, files: Sequence[Path]) -> ConversionStats:
    """Compare the weights that were read back with those that were written."""
    stats, state = ConversionStats(), model.state_dict()
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 -- upstream's object is no mapping
                if name in state:
                    stats.add(opened.get_tensor(name), state[name].cpu())
    return stats


def compare_loss(dtype: str, before: Perplexity | None, after: Perplexity | None) -> None:
    """Refuse a file whose loss differs by more than its number format explains.

    Raises:
        InvalidError: it does.

    """
    if before is None or after is None or dtype not in _SHARES:
        return
    limit = max(_LIMITS.get(dtype, 0.0), _SHARES[dtype] * before.loss)
    if abs(after.loss - before.loss) <= limit:
        return
    raise InvalidError(
        f"The GGUF file differs from the model: read back, its loss is {after.loss:.6g} "
        f"instead of {before.loss:.6g}.",
        hint="GGUF, or what reads it, may lack something of this family. Export the model for "
        "Transformers.",
    )


def compare_tokens(exported: Tokenizer, rows: TokenisedTexts) -> None:
    """Refuse a file whose tokenizer reads a row differently from the run's.

    Raises:
        InvalidError: it does; the message has the text around the first difference.

    """
    encoded = exported.encode_batch(list(rows.texts), add_special_tokens=False)
    for ids, written in zip(rows.ids, encoded, strict=True):
        if list(ids) == written.ids:
            continue
        pairs = enumerate(zip(ids, written.ids, strict=False))
        first = next((i for i, (one, other) in pairs if one != other), min(len(ids), len(written)))
        piece = "".join(written.tokens[first : first + 4])
        raise InvalidError(
            f"GGUF cannot hold this model's tokenizer: it reads a row differently from token "
            f"{first + 1} on, where the file reads “{piece}”.",
            hint="Export the model for Transformers.",
        )


def ask_llama_cpp(
    file: Path,
    model: PreTrainedModel,
    rows: TokenisedTexts,
    messages: list[dict[str, str]],
    *,
    added: int,
) -> llama_cpp.Answer | None:
    """Ask llama.cpp what it makes of a file; None if it is not installed, or cannot read it.

    Raises:
        InvalidError: it counts other tokens in a row than the run, which has `added` fewer.

    """
    if not llama_cpp.is_installed() or not rows.ids:
        return None
    counted = [text for text in rows.texts if text.strip()][:_COUNTED_TEXTS]
    question = llama_cpp.Question(
        ids=list(rows.ids[0][: llama_cpp.MAX_POSITIONS]),
        vocabulary=model.config.vocab_size,
        texts=counted,
        messages=messages,
        context=min(2048, model.config.max_position_embeddings),
    )
    answer = llama_cpp.ask(file, question)
    if answer is None:
        return None
    lengths = [len(ids) for ids, text in zip(rows.ids, rows.texts, strict=True) if text.strip()]
    wrong = [i for i, count in enumerate(answer.counts) if count != lengths[i] + added]
    if wrong:
        raise InvalidError(
            f"llama.cpp reads {answer.counts[wrong[0]]} tokens where the run reads "
            f"{lengths[wrong[0]] + added}, in the row that begins “{counted[wrong[0]][:60]}”.",
            hint="Export the model for Transformers.",
        )
    return answer


def compare_llama_cpp(
    dtype: str, model: PreTrainedModel, rows: TokenisedTexts, answer: llama_cpp.Answer
) -> tuple[float, float]:
    """Return the loss of the first row by Transformers and by llama.cpp.

    Raises:
        InvalidError: they differ by more than their roundings explain.

    """
    ids = torch.tensor([list(rows.ids[0][: len(answer.losses) + 1])], device=model.device)
    with evaluation_mode(model):
        logits = model(input_ids=ids).logits[0, :-1].float()
    ours = torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()
    theirs = sum(answer.losses) / max(len(answer.losses), 1)
    if abs(theirs - ours) <= max(_LLAMA_CPP_LIMITS.get(dtype, 0.5), 0.01 * ours):
        return ours, theirs
    raise InvalidError(
        f"llama.cpp computes another loss from this file than Transformers: {theirs:.6g} instead "
        f"of {ours:.6g}.",
        hint="GGUF, or llama.cpp, may lack something of this family.",
    )
