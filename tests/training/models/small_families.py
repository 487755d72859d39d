"""Small models of several families, with the tokenizer of `tiny`."""

from transformers import GPT2Config, GPTNeoXConfig, PreTrainedConfig, Qwen3Config

from tests.training import tiny

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
SMALL_FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": tiny.llama(),
    "gpt2": GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    "neox": GPTNeoXConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16),
}
