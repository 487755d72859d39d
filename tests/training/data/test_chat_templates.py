"""What a model learns of a conversation: its answers, with the mark that ends them."""

import pytest

from studio.errors import TrainingError
from studio.intake.row_formats.schema import to_training_example
from studio.training.data import chat_templates, tokenisation
from studio.training.data.rows import Message, TrainingRow
from tests.training import tiny

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello? Hi!"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "Add 1 and 2."},
    {"role": "assistant", "content": "3 <b>three</b>"},
    {"role": "user", "content": "Thanks."},
]
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}"
    "{{ message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
MARKS_WITHOUT_END = tiny.WITH_MARKS.replace(
    "{{ message.content + '<|im_end|>' }}{% endgeneration %}",
    "{{ message.content }}{% endgeneration %}{{ '<|im_end|>' }}",
)
NO_END_AT_ALL = (
    "{% for message in messages %}{{ message.role + '>' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant>' }}{% endif %}"
)


REASONING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' and message.KEY is string %}"
    "{{ '<think>' + message.KEY + '</think>' }}{% endif %}"
    "{{ message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""As Qwen's template writes it, by any of the names that families have for it."""


def learnt_with(template: str, choice: str = "model") -> list[str]:
    reader = tiny.tokenizer(template)
    chat_templates.set_chat_template(reader, choice)  # type: ignore[arg-type] # parametrised
    examples = tokenisation.tokenise(
        [TrainingRow(messages=TALK)], chat_templates.ChatTemplate(reader), reader, max_length=500
    )
    return tiny.trained_texts(examples, reader)[0]


@pytest.mark.parametrize(
    "template",
    [tiny.WITH_MARKS, tiny.WITHOUT_MARKS, MARKS_WITHOUT_END],
    ids=["marks", "none", "short"],
)
def test_loss_covers_answers_and_their_end_tokens(template: str) -> None:
    assert learnt_with(template) == ["Hi!<|im_end|>", "3 <b>three</b><|im_end|>"]


@pytest.mark.parametrize(("choice", "space"), [("chatml", ""), ("plain", " ")])
def test_built_in_templates_train_on_answers(choice: str, space: str) -> None:
    assert learnt_with("", choice) == [f"{space}Hi!<|im_end|>", f"{space}3 <b>three</b><|im_end|>"]


def test_generation_prompt_prefix_does_not_shift_answer_spans() -> None:
    assert learnt_with(THINKING) == ["Hi!<|im_end|>", "\n</think>\n3 <b>three</b><|im_end|>"]


def test_end_token_is_added_when_template_has_none() -> None:
    assert learnt_with(NO_END_AT_ALL) == ["Hi!\n", "3 <b>three</b>\n<|im_end|>"]


def test_model_without_chat_template_is_rejected() -> None:
    with pytest.raises(TrainingError) as caught:
        chat_templates.set_chat_template(tiny.tokenizer(""), "model")

    assert caught.value.code == "no_chat_template"


def test_template_error_message_is_passed_on() -> None:
    reader = tiny.tokenizer("{{ raise_exception('Roles must alternate') }}")

    with pytest.raises(TrainingError, match="Roles must alternate"):
        chat_templates.ChatTemplate(reader)


def test_stop_token_is_end_of_turn_token() -> None:
    reader = tiny.tokenizer()

    assert chat_templates.ChatTemplate(reader).stop_tokens == [
        reader.convert_tokens_to_ids("<|im_end|>")
    ]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_trained_on_when_template_renders_it(key: str) -> None:
    answer = {"role": "assistant", "content": "3", "reasoning_content": "One more than 2."}
    found = to_training_example({"messages": [{"role": "user", "content": "1 + 2?"}, answer]})
    assert found is not None
    reader = tiny.tokenizer(REASONING.replace("KEY", key))
    chat_templates.set_chat_template(reader, "model")
    rows = [TrainingRow(messages=found.messages)]
    examples = tokenisation.tokenise(
        rows, chat_templates.ChatTemplate(reader), reader, max_length=500
    )

    assert tiny.trained_texts(examples, reader)[0] == ["<think>One more than 2.</think>3<|im_end|>"]


def test_template_is_loaded_once_until_it_changes() -> None:
    reader = tiny.tokenizer()
    chat_templates.set_chat_template(reader, "chatml")
    first = chat_templates.load(reader)
    assert chat_templates.load(reader) is first

    chat_templates.set_chat_template(reader, "plain")
    second = chat_templates.load(reader)
    assert second.hash != first.hash
    reader.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    assert chat_templates.load(reader) is not second
