"""Read a GGUF file back: its model by Transformers, its tokenizer as llama.cpp would."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.tokenization_utils_base import generate_merges

from studio.training.export.gguf import vocabulary
from studio.training.models import loader

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF's types of tokens that are found in a text as a whole."""


def read_model(file: Path, trained: PreTrainedConfig) -> PreTrainedModel:
    """Load the model of a GGUF file in float32.

    Its config is that of the file, too, except for how positions are scaled: Transformers does not
    read that from GGUF, so it comes from the config of the trained model.
    """
    folder = str(file.parent)
    config = AutoConfig.from_pretrained(folder, gguf_file=file.name, trust_remote_code=False)
    if scales_positions(trained):
        config.rope_parameters = trained.rope_parameters
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=file.name,
        config=config,
        dtype=torch.float32,
        attn_implementation=loader.attention_implementation(config),
        trust_remote_code=False,
    )
    return model


def scales_positions(config: PreTrainedConfig) -> bool:
    """Whether a model changes its rotary positions, to read longer texts."""
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    is_by_layer = bool(rope) and all(isinstance(part, dict) for part in rope.values())
    parts = list(rope.values()) if is_by_layer else [rope]
    return any(part.get("rope_type", "default") != "default" for part in parts)


def read_tokenizer(file: Path) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes."""
    architecture, described, _config = get_gguf_tokenizer(str(file))
    if described["tokenizer_type"] == "llama":
        return _build_sentencepiece(described)
    tokenizer: Tokenizer = convert_gguf_tokenizer(architecture, described)[0]
    if split := vocabulary.build_pre_tokenizer(described.get("pre_tokenizer_type", "")):
        tokenizer.pre_tokenizer = split
    return tokenizer


def _build_sentencepiece(described: dict[str, Any]) -> Tokenizer:
    """Build what merges the pair of the best score first, as SentencePiece and llama.cpp do."""
    tokens: list[str] = described["tokens"]
    types = described["token_type"]
    kinds = dict(zip(tokens, types, strict=True))
    whole = {token for token, kind in kinds.items() if kind in (_CONTROL, _USER_DEFINED)}
    vocab = {token: index for index, token in enumerate(tokens)}
    scores = dict(zip(tokens, described["scores"], strict=True))
    merges = generate_merges(vocab, scores, skip_tokens=whole)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if described.get("add_prefix_space", True):
        spaces.insert(0, normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    for token in tokens:
        if token in whole:
            is_special = kinds[token] == _CONTROL
            added = AddedToken(token, normalized=False, special=is_special)
            (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)([added])
    return tokenizer
