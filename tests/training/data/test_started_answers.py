"""The prompt of an answer that a model is to continue where it was cut off."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from studio.protocols.tokenizer_service import TemplateSource, TokenizerRequest
from studio.training.data.token_preview import tokenise_prompt
from tests.training import tiny

QUESTION = {"messages": [{"role": "user", "content": "What is two plus two?"}]}
ANSWER = "Two plus two is four, and that is all there is to say."
GLUED = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: I thi' }}{% endif %}"
)
"""A template whose last token the answer's first letters would complete."""


@pytest.fixture(scope="module")
def starter(starter_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(starter_model)


def ids_of(
    reader: PreTrainedTokenizerBase, start: str, template: TemplateSource = "model"
) -> list[int]:
    request = TokenizerRequest(
        kind="prompt", model="", row=QUESTION, chat_template=template, answer_start=start
    )
    return tokenise_prompt(request, reader).ids


@pytest.mark.parametrize("words", range(1, len(ANSWER.split())))
def test_started_answer_follows_prompt_in_tokens_it_was_written_in(
    starter: PreTrainedTokenizerBase, words: int
) -> None:
    prompt, whole = ids_of(starter, ""), ids_of(starter, ANSWER)
    start = ids_of(starter, " ".join(ANSWER.split()[:words]))

    assert whole[: len(start)] == start
    assert start[: len(prompt)] == prompt


def test_tokens_of_prompt_stay_as_model_read_them(starter_model: Path) -> None:
    reader = AutoTokenizer.from_pretrained(starter_model)
    reader.chat_template = GLUED
    prompt, whole = ids_of(reader, ""), ids_of(reader, "nk so.")

    merged = reader(reader.decode(whole), add_special_tokens=False)["input_ids"]
    assert merged[: len(prompt)] != prompt  # The answer's first letters would change them.
    assert whole[: len(prompt)] == prompt
    assert reader.decode(whole).endswith("I think so.")


def test_prompt_names_its_template() -> None:
    reader = tiny.tokenizer(tiny.WITH_MARKS)
    request = TokenizerRequest(kind="prompt", model="", row=QUESTION)
    own, other = (
        tokenise_prompt(request.model_copy(update={"chat_template": name}), reader)
        for name in ("model", "plain")
    )
    text = request.model_copy(update={"row": {"text": "Once"}, "answer_start": " upon"})

    assert len(own.template_hash) == 8
    assert own.template_hash != other.template_hash
    assert tokenise_prompt(text, reader).template_hash == ""
    assert reader.decode(tokenise_prompt(text, reader).ids).endswith("Once upon")
