"""Tasks as a trainer reads them: prompts up to where the model answers, and what graders read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.training.data import prompt_answer
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, label_rows
from studio.training.data.rows import TrainingRow, read_rows, to_training_row
from studio.training.data.tasks import Task, to_task
from studio.training.data.token_preview import preview_tokens
from studio.training.data.token_stats import count_tokens, make_tokeniser
from studio.training.data.tokenisation import tokenise
from studio.training.evaluation.sample_answers import AnswerSampler
from tests.training import tiny

USER: Mapping[str, Any] = {"role": "user", "content": "What is 1 plus 2?"}
ANSWER: Mapping[str, Any] = {"role": "assistant", "content": "3"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
TASK = {"messages": [USER], "item": {"answer": 3, "near": [2.5, None]}}
TEMPLATES = {"with marks": tiny.WITH_MARKS, "without marks": tiny.WITHOUT_MARKS}


def parse(row: Mapping[str, Any]) -> TrainingRow:
    return to_training_row(row, 1, "training")


@pytest.fixture(params=list(TEMPLATES.values()), ids=list(TEMPLATES))
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return tiny.tokenizer(request.param)


def test_task_is_read_with_its_columns(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", [TASK, {"messages": [USER], "item": {}}])
    first, second = read_rows(path)

    assert (first.is_task, first.item, list(first.messages)) == (True, TASK["item"], [USER])
    assert (second.is_task, second.item, second.number) == (True, {}, 2)
    assert not parse({"messages": [USER, ANSWER]}).is_task


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (TASK | {"item": [1]}, "its item is not an object"),
        (TASK | {"messages": [USER, ANSWER]}, "it does not end with a turn that a model answers"),
        (TASK | {"messages": []}, "it does not end with a turn that a model answers"),
        (TASK | {"messages": ["?"]}, "it does not end with a turn that a model answers"),
        (TASK | {"messages": [{"role": "user"}]}, "turn 1 has no text in content"),
    ],
)
def test_row_that_is_no_task_is_refused(
    tmp_path: Path, row: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(TrainingError, match=problem):
        read_rows(tiny.write_rows(tmp_path / "rows.jsonl", [row]))


def test_task_is_what_a_model_answers_and_graders_read() -> None:
    row = parse(TASK | {"tools": [TOOL]})

    assert to_task(row) == Task(
        messages=[USER], tools=[TOOL], item={"messages": [USER], "answer": 3, "near": [2.5, None]}
    )


def test_column_called_messages_is_what_graders_read() -> None:
    task = to_task(parse(TASK | {"item": {"messages": "mine"}}))

    assert task is not None
    assert task.item == {"messages": "mine"}


def test_answer_of_a_conversation_is_for_graders() -> None:
    turns = [USER, ANSWER, {"role": "user", "content": "Plus 1?"}, {**ANSWER, "content": "4"}]
    task = to_task(parse({"messages": turns, "tools": [TOOL]}))

    assert task == Task(
        messages=turns[:3],
        tools=[TOOL],
        item={"messages": turns[:3], "reference_answer": "4"},
    )


@pytest.mark.parametrize("row", [{"text": "Once"}, {"messages": [ANSWER]}, {"messages": []}])
def test_row_without_a_question_is_no_task(row: Mapping[str, Any]) -> None:
    assert to_task(parse(row)) is None


def test_prompt_is_rendered_up_to_the_answer_and_not_learnt(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    template = ChatTemplate(tokenizer)
    rows = [parse(one) for one in (TASK, {"messages": [USER, ANSWER]}, TASK)]
    first, answered, last = label_rows(rows, template, tokenizer)

    assert first == last
    assert first.text == template.render_prompt([USER]) == answered.text[: len(first.text)]
    assert first.text.endswith("<|im_start|>assistant\n")
    assert first.ids == tokenizer(first.text, add_special_tokens=False)["input_ids"]
    assert set(first.labels) == {IGNORE_INDEX}
    assert set(answered.labels) != {IGNORE_INDEX}


def test_tasks_are_left_out_where_answers_are_learnt(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [parse(TASK), parse({"messages": [USER, ANSWER]})]
    made = tokenise(rows, ChatTemplate(tokenizer), tokenizer, 100)

    assert (made.rows, made.dropped) == (rows[1:], 1)


def test_lengths_of_tasks_are_counted(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    longer = [USER, ANSWER, USER]
    path = tiny.write_rows(tmp_path / "rows.jsonl", [TASK, {"messages": longer, "item": {}}])
    stats = count_tokens(path, "training", make_tokeniser(tokenizer, "model"), lambda *_done: None)
    template = ChatTemplate(tokenizer)
    sizes = [
        len(tokenizer(template.render_prompt(turns), add_special_tokens=False)["input_ids"])
        for turns in ([USER], longer)
    ]

    assert (stats.rows, stats.tokens, stats.learnt, stats.unlearnt) == (2, sum(sizes), 0, 0)
    assert [row.tokens for row in stats.longest] == sizes[::-1]
    assert stats.roles["user"] > stats.roles["assistant"] > 0


def request(**changes: Any) -> TokenizerRequest:  # noqa: ANN401 -- its fields
    fields = {"kind": "tokens", "model": "", "row": TASK, "max_length": 100}
    return TokenizerRequest.model_validate(fields | {"chat_template": "model"} | changes)


def test_preview_shows_the_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    preview = preview_tokens(request(), tokenizer)

    text = "".join(token.text for token in preview.tokens)
    assert text == ChatTemplate(tokenizer).render_prompt([USER])
    assert (preview.learnt, preview.roles, preview.warnings) == (0, ["user", "assistant"], [])
    assert preview.sentences == [
        "A task: the model writes its own answers to this prompt, and graders score them."
    ]
    opening = "".join(token.text for token in preview.tokens if token.turn == 1)
    assert opening == "<|im_start|>assistant\n"


def test_preview_names_a_prompt_beyond_the_limit(tokenizer: PreTrainedTokenizerBase) -> None:
    preview = preview_tokens(request(max_length=4), tokenizer)

    assert preview.warnings == ["The prompt is longer than the limit of 4 tokens."]
    assert preview.cut == preview.total - 4


def test_sampled_answers_follow_the_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    template = ChatTemplate(tokenizer)
    row = parse({"messages": [USER], "item": {"reference_answer": 3}})
    (prompt,) = AnswerSampler([row], template, tokenizer, 4).prompts
    (bare,) = AnswerSampler([parse(TASK)], template, tokenizer, 4).prompts

    assert tokenizer.decode(prompt.ids) == template.render_prompt([USER])
    assert (prompt.reference, bare.reference) == ("3", "")
    assert prompt_answer.split_row(row) == ("What is 1 plus 2?", "3")
