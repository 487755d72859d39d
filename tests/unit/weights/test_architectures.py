"""What kind of model a config describes, without loading it or any library that could."""

from typing import Any

import pytest

from studio.methods import METHODS, model_compatibility
from studio.weights import architectures
from studio.weights.architectures import KIND_DESCRIPTIONS, ModelKind

CONFIGS: list[tuple[dict[str, Any], ModelKind | None]] = [
    ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "causal"),
    ({"model_type": "gpt2"}, "causal"),
    ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "causal"),
    ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "causal"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "encoder_decoder"),
    ({"model_type": "t5"}, "encoder_decoder"),
    ({"model_type": "bart", "architectures": ["BartModel"]}, "encoder_decoder"),
    ({"model_type": "bart", "is_encoder_decoder": False}, "causal"),
    ({"model_type": "marian", "is_encoder_decoder": True}, "encoder_decoder"),
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "encoder"),
    ({"model_type": "bert", "is_decoder": True}, "causal"),
    ({"model_type": "modernbert"}, "encoder"),
    ({"model_type": "distilbert", "is_decoder": True}, "encoder"),
    ({"model_type": "xlnet", "is_decoder": True}, "encoder"),
    ({"model_type": "whisper", "is_encoder_decoder": True}, "audio"),
    ({"model_type": "wav2vec2"}, "audio"),
    ({"model_type": "vit"}, "vision"),
    ({"model_type": "clip"}, "vision"),
    ({"model_type": "llava"}, "image_text"),
    ({"model_type": "llava", "vision_config": {"model_type": "pixtral"}}, "multimodal"),
    ({"model_type": "qwen2_5_vl"}, "image_text"),
    ({"model_type": "idefics3"}, "multimodal"),
    ({"model_type": "time_series_transformer"}, "other"),
    ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "classifier"),
    (
        {
            "model_type": "mistral",
            "architectures": ["MistralModel"],
            "tie_word_embeddings": False,
        },
        "embedding",
    ),
    ({"model_type": "bloom", "architectures": ["BloomModel"]}, "causal"),
    ({"model_type": "a family of its own"}, None),
    ({"model_type": 7}, None),
    ({}, None),
]


@pytest.mark.parametrize(("config", "kind"), CONFIGS)
def test_config_determines_model_kind(config: dict[str, Any], kind: ModelKind | None) -> None:
    assert architectures.kind_of(config) == kind


def test_untrainable_reason_names_method() -> None:
    assert model_compatibility.untrainable_reason("causal", "llama") == ""
    assert model_compatibility.untrainable_reason(None, "new") == ""
    assert model_compatibility.untrainable_reason("encoder", "bert", [METHODS["sft"]]) == (
        f"{KIND_DESCRIPTIONS['encoder']} The method Supervised cannot train bert models."
    )


@pytest.mark.parametrize("method", ["reward", "classify", "regress"])
def test_family_without_a_class_for_scores_is_refused(method: str) -> None:
    reason = model_compatibility.untrainable_reason("causal", "granite", [METHODS[method]])

    assert reason.endswith(f"The method {METHODS[method].title} cannot train granite models.")
    assert model_compatibility.untrainable_reason("causal", "qwen3", [METHODS[method]]) == ""


def test_each_family_has_one_kind() -> None:
    names = [name for families in architectures._FAMILIES.values() for name in families]
    assert len(names) == len(set(names)) == len(architectures.FAMILY_KINDS)
    assert {
        name for name, kind in architectures.FAMILY_KINDS.items() if kind == "encoder"
    } > architectures.DECODABLE
