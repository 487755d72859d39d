"""Known models: their dimensions give the number of parameters that their authors state."""

from itertools import chain

import pytest

from studio.methods.seq2seq import FAMILIES
from studio.network.hub_client import REPO_ID
from studio.weights import image_text
from studio.weights.encoders import ENCODERS
from studio.weights.family_limits import FAMILY_LAYERS
from studio.weights.known_models import (
    KNOWN_ENCODER_DECODERS,
    KNOWN_ENCODERS,
    KNOWN_IMAGE_TEXT_MODELS,
    KNOWN_MODELS,
)

LISTS = (KNOWN_MODELS, KNOWN_ENCODER_DECODERS, KNOWN_ENCODERS, KNOWN_IMAGE_TEXT_MODELS)
STATED = {
    "openai-community/gpt2": 124e6,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 135e6,
    "google/gemma-3-270m-it": 268e6,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 362e6,
    "Qwen/Qwen2.5-0.5B-Instruct": 494e6,
    "Qwen/Qwen3-0.6B": 596e6,
    "google/gemma-3-1b-it": 1000e6,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1100e6,
    "meta-llama/Llama-3.2-1B-Instruct": 1236e6,
    "allenai/OLMo-2-0425-1B-Instruct": 1485e6,
    "Qwen/Qwen2.5-1.5B-Instruct": 1544e6,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1711e6,
    "Qwen/Qwen3-1.7B": 1721e6,
    "HuggingFaceTB/SmolLM3-3B": 3075e6,
    "meta-llama/Llama-3.2-3B-Instruct": 3213e6,
    "microsoft/Phi-3.5-mini-instruct": 3821e6,
    "Qwen/Qwen3-4B": 4022e6,
    "mistralai/Mistral-7B-Instruct-v0.3": 7248e6,
    "meta-llama/Llama-3.1-8B-Instruct": 8030e6,
    "Qwen/Qwen3-8B": 8191e6,
}


def test_parameters_match_stated_numbers() -> None:
    computed = {known.repo: known.facts.parameters for known in KNOWN_MODELS}

    assert computed == pytest.approx(STATED, rel=0.005)


def test_models_are_listed_from_smallest_to_largest() -> None:
    for listed in LISTS:
        sizes = [known.facts.parameters for known in listed]
        assert sizes == sorted(sizes)


def test_memory_of_every_family_is_known() -> None:
    assert {known.family for known in KNOWN_MODELS} <= set(FAMILY_LAYERS)


def test_names_can_be_used_in_recipes() -> None:
    known = chain.from_iterable(LISTS)
    assert [one.repo for one in known if not REPO_ID.fullmatch(one.repo)] == []


def test_encoder_decoders_are_of_families_that_can_be_trained() -> None:
    assert {known.family for known in KNOWN_ENCODER_DECODERS} <= FAMILIES
    assert {known.facts.kind for known in KNOWN_ENCODER_DECODERS} == {"encoder_decoder"}


def test_encoders_are_of_families_that_can_be_trained() -> None:
    assert {known.family for known in KNOWN_ENCODERS} <= set(ENCODERS)
    assert {known.facts.kind for known in KNOWN_ENCODERS} == {"encoder"}


def test_image_text_models_are_of_families_that_can_be_trained() -> None:
    assert {known.family for known in KNOWN_IMAGE_TEXT_MODELS} == set(image_text.FAMILIES)
    assert {known.facts.kind for known in KNOWN_IMAGE_TEXT_MODELS} == {"image_text"}
