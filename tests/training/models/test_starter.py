"""The real starter, looked at from all sides."""

import fcntl
import os
import re
import subprocess
import sys
import threading
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

from studio.services.operations import home
from studio.training import starter_model
from tests.support import live_studio
from tests.support.waiting import wait_until
from tests.tools.starter import instruction_rows
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
def folder() -> Path:
    return live_studio.starter_model()


def test_build_progress_is_reported_to_last_step(folder: Path) -> None:
    reports = folder.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    steps = range(starter_model.LOG_EVERY, starter_model.STEPS + 1, starter_model.LOG_EVERY)
    shown = [f"{home.MAKING_STARTER} Step {step} of {starter_model.STEPS}" for step in steps]

    assert [report.partition(", about")[0] for report in reports] == shown
    assert all(re.fullmatch(r".*, about \d+ s left", report) for report in reports[1:])
    assert reports[-1].endswith(", about 0 s left")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_starter_is_small_llama_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert model.config.model_type == "llama"
    assert 1_000_000 <= model.num_parameters() <= 5_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings >= 512


def test_existing_starter_is_not_rebuilt(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")

    starter_model.build(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_help_option_prints_usage_without_building(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "studio.training.starter_model", "--help"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("usage: python -m studio.training.starter_model")
    assert list(tmp_path.iterdir()) == []


def locks() -> list[str]:
    """Return the locks of this machine, as its kernel tells of them."""
    return Path("/proc/locks").read_text().splitlines()


def test_second_build_waits_for_first(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    second = threading.Thread(target=starter_model.build, args=(tmp_path / "starter",))
    second.start()
    waits = f":{tmp_path.stat().st_ino} "
    try:
        wait_until(lambda: any("->" in one and waits in one for one in locks()))
        (tmp_path / "starter").mkdir()
    finally:
        os.close(handle)
        second.join()

    assert list((tmp_path / "starter").iterdir()) == []


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
