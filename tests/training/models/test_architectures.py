"""The table of model kinds agrees with the installed transformers and with models themselves."""

from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
)

from studio.weights import architectures
from studio.weights.architectures import DECODABLE, FAMILY_KINDS, SCORING, SCORING_TOKENS
from tests.training.models import test_families

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTH, CHANGED = 24, 8
"""Tokens of a text, and how many of its last ones are changed."""

SIZE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
OLDER: dict[str, Any] = {"vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": OLDER,
    "gpt_neox": SIZE,
    "falcon": SIZE,
    "starcoder2": SIZE | {"num_key_value_heads": 1},
    "opt": SIZE | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"vocab_size": 320, "hidden_size": 32, "n_layer": 2, "n_head": 2},
    "phi": SIZE,
    "gptj": OLDER | {"rotary_dim": 8, "n_positions": 128},
    "codegen": OLDER | {"rotary_dim": 8, "n_head": 4, "n_positions": 128},
    "mpt": {"vocab_size": 320, "d_model": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 128},
    "stablelm": SIZE | {"num_key_value_heads": 1},
    "gpt_bigcode": OLDER,
    "gpt_neo": {
        "vocab_size": 320,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": 128,
    },
    "biogpt": SIZE,
}

OLD_STYLE = {"reformer", "roc_bert", "xmod"}
"""Families that want more than sizes to be built."""

CAUSAL: dict[str, PreTrainedConfig] = {
    name: CONFIG_MAPPING[name](**sizes) for name, sizes in FAMILIES.items()
} | test_families.FAMILIES
ENCODERS = sorted(DECODABLE - OLD_STYLE | {"xlm", "xlnet"})


def encoder(name: str, **changes: Any) -> PreTrainedConfig:  # noqa: ANN401 -- any field of a config
    size = {"d_model": 32, "n_layer": 2, "n_head": 2, "emb_dim": 32, "n_layers": 2, "n_heads": 2}
    fields = set(CONFIG_MAPPING[name]().to_dict())
    wanted = SIZE | size | {"embedding_size": 32, "attention_type": "original_full"}
    return CONFIG_MAPPING[name](**{k: v for k, v in wanted.items() if k in fields}, **changes)


def leak(config: PreTrainedConfig) -> float:
    """Return how much the last tokens of a text change what is predicted from the first ones."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.randint(5, 300, (1, LENGTH))
    other = tokens.clone()
    other[0, -CHANGED:] = 5 + (other[0, -CHANGED:] + 37) % 290
    with torch.no_grad():
        first, second = (
            model(input_ids=one, attention_mask=torch.ones_like(one), use_cache=False).logits
            for one in (tokens, other)
        )
    assert not torch.equal(first[:, -1], second[:, -1])
    early = slice(None, LENGTH - CHANGED)
    return float((first[:, early] - second[:, early]).abs().max())


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_do_not_influence_earlier_ones_in_causal_model(name: str) -> None:
    assert architectures.kind_of(CAUSAL[name].to_dict()) == "causal"
    assert leak(CAUSAL[name]) < 1e-5


@pytest.mark.parametrize("name", ENCODERS)
def test_later_tokens_influence_earlier_ones_in_encoder(name: str) -> None:
    config = encoder(name)
    assert architectures.kind_of(config.to_dict()) == "encoder"
    assert leak(config) > 1e-4


@pytest.mark.parametrize("name", sorted(DECODABLE - OLD_STYLE))
def test_encoder_configured_as_decoder_is_causal(name: str) -> None:
    config = encoder(name, is_decoder=True)
    assert architectures.kind_of(config.to_dict()) == "causal"
    assert leak(config) < 1e-5


def test_table_lists_every_installed_family() -> None:
    assert set(CONFIG_MAPPING.keys()) - set(FAMILY_KINDS) == set()


def test_causal_families_have_causal_lm_class() -> None:
    loadable = {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    causal = {family for family, kind in FAMILY_KINDS.items() if kind == "causal"}
    # Two names share the class of another family's config.
    assert {CONFIG_MAPPING[family].model_type for family in causal} - loadable == set()


def test_scoring_families_have_a_class_for_scores() -> None:
    """Two more name their output layer otherwise, or put more than it on top."""
    causal = {family for family, kind in FAMILY_KINDS.items() if kind == "causal"}
    loadable = {
        family
        for family in causal
        if CONFIG_MAPPING[family] in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    }
    assert loadable - SCORING == {"ctrl", "modernbert-decoder"}
    assert loadable >= SCORING


def test_families_that_score_tokens_have_a_class_for_it() -> None:
    loadable = {
        family
        for family in SCORING
        if CONFIG_MAPPING[family] in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    }
    assert loadable == SCORING_TOKENS
