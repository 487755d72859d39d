"""Read two texts at once: models such as BERT are shown which tokens belong to the second one."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig


def read_pairs(model: nn.Module, config: PreTrainedConfig, batch: Mapping[str, Any]) -> Tensor:
    """Return the scores of each pair of texts: shape (pairs, scores of the head), float32."""
    read = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if (getattr(config, "type_vocab_size", 0) or 0) > 1:
        read["token_type_ids"] = batch["types"]
    scores: Tensor = model(**read, use_cache=False).logits
    return scores
