"""The kinds of models, by what they do with tokens, and a description of each."""

from typing import Literal

ModelKind = Literal[
    "causal",
    "encoder_decoder",
    "encoder",
    "classifier",
    "embedding",
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
    "multimodal": "This is a multimodal model: it reads images or video as well as text.",
    "audio": "This is an audio model: it processes or generates sound.",
    "vision": "This is a vision model: it reads images.",
    "other": "This is not a language model, or only a part of one.",
}

CAUSAL_MODEL_HINT = "Choose a causal language model, such as Llama, Qwen, Gemma, Mistral or GPT-2."
