"""The real starter, looked at from all sides."""

from pathlib import Path

import pytest
import torch
from jinja2 import TemplateError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tests.tools.starter import base_model, build, instruction_rows
from tests.tools.starter.chat import Message

pytestmark = pytest.mark.slow

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who is Rita?"},
    {"role": "assistant", "content": "Rita is a baker."},
    {"role": "user", "content": "And Omar?"},
    {"role": "assistant", "content": "Omar is a pilot."},
]


@pytest.fixture(scope="module")
def tokenizer(starter_model: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(starter_model)


@pytest.fixture(scope="module")
def model(starter_model: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(starter_model, dtype=torch.float32)


def test_starter_is_small_llama_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert model.config.model_type == "llama"
    assert 1_000_000 <= model.num_parameters() <= 5_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings >= 512


def test_shipped_model_is_what_its_builder_makes(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    built = base_model.train_tokenizer()
    shipped, described = model.config.to_dict(), base_model.config(built).to_dict()
    loading = {"_name_or_path", "architectures", "transformers_version"}

    assert tokenizer.backend_tokenizer.to_str() == built.backend_tokenizer.to_str()
    assert tokenizer.chat_template == base_model.CHAT_TEMPLATE
    assert {name for name in described if described[name] != shipped[name]} <= loading
    assert build.FINGERPRINT.read_text() == build.fingerprints(base_model.fingerprint()), (
        "Its builder has changed: run `make starter`."
    )


def test_special_token_ids_match_model_config(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]

    config = model.config
    assert ids == [config.pad_token_id, config.bos_token_id, config.eos_token_id]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "text",
    [
        "Rita is a baker.",
        " space first",
        "\n\nlines\n\tand tabs ",
        "fox \N{FOX FACE}, na\u00efve, \u6f22\u5b57",
    ],
)
def test_tokenizer_round_trip_is_lossless(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_word_has_same_token_at_start_and_inside_text(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert tokenizer.tokenize("Rita")[0] == tokenizer.tokenize("see Rita")[-1]


def test_chat_template_marks_roles_and_adds_generation_prompt(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    text = tokenizer.apply_chat_template(CHAT[:2], tokenize=False, add_generation_prompt=True)

    assert text == ("<|start|><|system|>Be brief.<|end|><|user|>Who is Rita?<|end|><|assistant|>")


def test_assistant_mask_covers_only_answers_and_their_end_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    rendered = tokenizer.apply_chat_template(
        CHAT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )

    pairs = zip(rendered["input_ids"], rendered["assistant_masks"], strict=True)
    learned = tokenizer.decode([token for token, answer in pairs if answer])
    assert learned == "Rita is a baker.<|end|> Omar is a pilot.<|end|>"


def test_chat_template_rejects_unknown_role(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TemplateError, match="no role named tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "4"}], tokenize=False)


def test_base_model_predicts_prose(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = tokenizer(
        "<|start|>On Monday Rita went to the market in Oslo. It was raining.", return_tensors="pt"
    )["input_ids"]

    with torch.no_grad():
        loss = model(input_ids=ids, labels=ids).loss.item()

    assert loss < 4  # guessing among 2,000 tokens would be 7.6


def test_base_model_does_not_follow_instructions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    asked = [row["messages"] for row in instruction_rows.generate_rows("validation")][:20]

    right = [
        turns for turns in asked if _answer(model, tokenizer, turns[:-1]) == turns[-1]["content"]
    ]

    assert len(right) <= 2


def _answer(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, turns: list[Message]
) -> str:
    prompt = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    written = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0]
    answer: str = tokenizer.decode(
        written[prompt["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return answer
