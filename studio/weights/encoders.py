"""Encoders that learn scores: what their heads consist of, and how long a text they read.

The structure is taken from the families' code in transformers 5.23. Each family is trained in
`tests/training/runs/test_encoders.py`. Others are refused: XLNet reads the last token even if it is
padding, padding changes the scores of FNet and Nyströmformer, MobileBERT did not learn the rows of
that test, SqueezeBERT has no linear layers, the first DeBERTa cannot compute under autocast, and
the rest need more than a text or are not tested.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A family of encoders."""

    head: tuple[str, ...] = ("classifier",)
    """The modules on top of the encoder that give scores of a text, the output layer last. A base
    model may lack them."""
    token_head: tuple[str, ...] = ("classifier",)
    """The modules on top of the encoder that give scores of each token."""
    starts_after_padding: bool = False
    """Whether the position of padding comes first in its table of positions, as in RoBERTa."""
    has_table: bool = True
    """Whether positions are rows of a table, which ends."""


_PADDED = Encoder(starts_after_padding=True)

ENCODERS: Mapping[str, Encoder] = {
    "albert": Encoder(head=("albert.pooler", "classifier")),
    "bert": Encoder(head=("bert.pooler", "classifier")),
    "camembert": _PADDED,
    "convbert": Encoder(),
    "data2vec-text": _PADDED,
    "deberta-v2": Encoder(head=("pooler", "classifier")),
    "distilbert": Encoder(head=("pre_classifier", "classifier")),
    "electra": Encoder(),
    "ernie": Encoder(head=("ernie.pooler", "classifier")),
    "eurobert": Encoder(head=("dense", "classifier"), has_table=False),
    "gte": Encoder(head=("gte.pooler", "classifier"), has_table=False),
    "longformer": _PADDED,
    "megatron-bert": Encoder(head=("bert.pooler", "classifier")),
    "modernbert": Encoder(
        head=("head", "classifier"), token_head=("head", "classifier"), has_table=False
    ),
    "mpnet": _PADDED,
    "nomic_bert": Encoder(head=("nomic_bert.pooler", "classifier"), has_table=False),
    "rembert": Encoder(head=("rembert.pooler", "classifier")),
    "roberta": _PADDED,
    "roberta-prelayernorm": _PADDED,
    "roformer": Encoder(),
    "xlm-roberta": _PADDED,
    "xlm-roberta-xl": _PADDED,
}
"""The families that are trained, by `model_type`."""


def find(config: Mapping[str, Any]) -> Encoder | None:
    """Return the encoder that a config describes; None for any other model."""
    return None if config.get("is_decoder") else ENCODERS.get(str(config.get("model_type")))


def max_tokens(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens of a text an encoder can read; None if there is no such limit."""
    encoder, rows = find(config), config.get("max_position_embeddings")
    # DeBERTa v3 has relative positions alone.
    is_table = encoder is not None and encoder.has_table and config.get("position_biased_input", 1)
    if encoder is None or not is_table or not isinstance(rows, int):
        return None
    padding = config.get("pad_token_id")
    before = (padding if isinstance(padding, int) else 1) + 1 if encoder.starts_after_padding else 0
    return max(rows - before, 1)
