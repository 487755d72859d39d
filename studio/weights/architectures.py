"""The kind of model each family is, and so whether a training method can train it.

`families.json` lists the families of the installed transformers, by `model_type`, sorted by its own
task mappings, and by a probe of each family that loads as a causal language model: whether later
tokens change the predictions of earlier ones. `tests/training/models/test_architectures.py` repeats
both. A family that is not listed is checked when it is loaded.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from studio.weights import image_text

ModelKind = Literal[
    "causal",
    "encoder_decoder",
    "encoder",
    "classifier",
    "embedding",
    "image_text",
    "multimodal",
    "audio",
    "vision",
    "other",
]
"""What a model does with tokens; "causal" predicts each token from those before it."""

KIND_DESCRIPTIONS: dict[ModelKind, str] = {
    "causal": "This is a causal language model: it predicts each token from those before it.",
    "encoder_decoder": "This is an encoder-decoder model: one half reads a text and the other "
    "writes one.",
    "encoder": "This is an encoder: each token sees later tokens, so it cannot learn to predict "
    "them.",
    "classifier": "This is a classifier: it was saved with a head for labels, not for text.",
    "embedding": "This is an embedding model: it was saved without a head that writes text.",
    "image_text": "This is an image-text model: it reads images and text, and writes text.",
    "multimodal": "This is a multimodal model: it reads images or video as well as text.",
    "audio": "This is an audio model: it processes or generates sound.",
    "vision": "This is a vision model: it reads images.",
    "other": "This is not a language model, or only a part of one.",
}

CAUSAL_MODEL_HINT = "Choose a causal language model, such as Llama, Qwen, Gemma, Mistral or GPT-2."
CAUSAL_METHOD_HINT = (
    "Choose a causal language model, such as Llama, Qwen, Gemma, Mistral or GPT-2, or the method "
    "Sequence to sequence."
)
ENCODER_METHOD_HINT = (
    "Choose a causal language model, such as Llama, Qwen, Gemma, Mistral or GPT-2, or the method "
    "Classification, Regression or Token classification."
)
SCORING_HINT = (
    "Choose a causal language model, such as Llama, Qwen, Gemma 3 or GPT-2, or an encoder, such as "
    "BERT, RoBERTa or ModernBERT."
)
IMAGE_TEXT_HINT = (
    "Choose an image-text model, such as LLaVA, Qwen2.5-VL or Qwen3-VL, or another method."
)
IMAGE_TEXT_METHOD_HINT = (
    "Choose a causal language model, such as Llama, Qwen, Gemma, Mistral or GPT-2, or the method "
    "Vision."
)
ENCODER_DECODER_HINT = (
    "Choose an encoder-decoder model, such as T5, BART or Pegasus, or another method."
)

WRITING_KINDS: frozenset[ModelKind] = frozenset({"causal", "encoder_decoder", "image_text"})
"""The kinds that write text."""


def model_hint(kind: ModelKind | None, trainable: Collection[ModelKind]) -> str:
    """Return what to choose instead of a model of a kind, if a method trains others."""
    if "image_text" in trainable:
        return IMAGE_TEXT_HINT
    if "causal" not in trainable:
        return ENCODER_DECODER_HINT
    if "encoder" in trainable:
        return SCORING_HINT
    if kind in ("encoder", "classifier"):
        return ENCODER_METHOD_HINT
    if kind == "image_text":
        return IMAGE_TEXT_METHOD_HINT
    return CAUSAL_METHOD_HINT if kind == "encoder_decoder" else CAUSAL_MODEL_HINT


_LISTS = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
_FAMILIES: dict[ModelKind, list[str]] = _LISTS["kinds"]
FAMILY_KINDS: dict[str, ModelKind] = {
    family: kind for kind, families in _FAMILIES.items() for family in families
}
"""The usual kind of each family."""

DECODABLE: frozenset[str] = frozenset(_LISTS["decodable"])
"""Encoders that are causal if the config sets `is_decoder`."""

SCORING: frozenset[str] = frozenset(_LISTS["scoring"])
"""Causal families of which transformers has a class that gives scores instead of tokens."""

SCORING_TOKENS: frozenset[str] = frozenset(_LISTS["scoring_tokens"])
"""Causal families of which transformers has a class that gives each token scores."""

LAYER_NORMS: frozenset[str] = frozenset(_LISTS["layer_norms"])
"""Families whose layer norms a CPU cannot compute if weights are in the other 16-bit format.

Autocast casts the input of such a norm, but not its weights. A GPU computes it in float32.
"""

_CAUSAL_HEAD = re.compile(
    r"(ForCausalLM|LMHeadModel|DoubleHeadsModel|ForConditionalGeneration|ModelWithLMHead)$"
)
_LABEL_HEAD = re.compile(
    r"For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|RewardModel)$"
)


def kind_of(config: Mapping[str, Any]) -> ModelKind | None:
    """Return the kind of model a config describes, or None for a family that is not listed."""
    kind = FAMILY_KINDS.get(str(config.get("model_type")))
    if kind == "encoder_decoder" and config.get("is_encoder_decoder") is False:
        # The decoder was saved alone, as with BartForCausalLM.
        return "causal"
    if kind == "causal" and config.get("is_encoder_decoder") is True:
        return "encoder_decoder"
    if kind == "image_text" and not image_text.is_readable(config):
        return "multimodal"
    if kind == "encoder" and config.get("is_decoder") is True:
        return "causal" if config["model_type"] in DECODABLE else kind
    return _kind_by_head(config) if kind == "causal" else kind


def _kind_by_head(config: Mapping[str, Any]) -> ModelKind:
    """Return the kind of a causal family by its saved head: a missing one would be random."""
    names = config.get("architectures")
    heads = [head for head in names if isinstance(head, str)] if isinstance(names, list) else []
    if not heads or any(map(_CAUSAL_HEAD.search, heads)):
        return "causal"
    if any(map(_LABEL_HEAD.search, heads)):
        return "classifier"
    is_bare = all(head.endswith("Model") for head in heads)
    # A head tied to the embeddings exists anyway.
    return "embedding" if is_bare and config.get("tie_word_embeddings") is False else "causal"
