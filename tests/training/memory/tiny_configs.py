"""A config of each family whose memory the studio can work out, as small as one likes."""

from transformers import AutoConfig, PreTrainedConfig

_WITHOUT_HEAD_DIM = {"phi3", "olmo2", "smollm3", "granite", "gpt_neox"}


def config(family: str, words: int, hidden: int, inner: int, layers: int) -> PreTrainedConfig:
    """Return a config with four heads that share two of keys, where the family can."""
    tokens = {"vocab_size": words, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt2":
        told = {"n_embd": hidden, "n_inner": inner, "n_layer": layers, "n_head": 4}
        return AutoConfig.for_model(family, **tokens, **told, n_positions=512)
    told = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    }
    if family != "gpt_neox":
        told["num_key_value_heads"] = 2
    if family not in _WITHOUT_HEAD_DIM:
        told["head_dim"] = 32
    return AutoConfig.for_model(family, **tokens, **told)
