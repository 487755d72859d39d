"""Recognise tasks: prompts without an answer to learn, with columns that graders read."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from studio.intake.detection.column_types import ColumnTable, hold_prompts, is_text
from studio.intake.detection.name_heuristics import (
    ANSWER_LISTS,
    TOOLS,
    ShapeMatch,
    build_match,
    join_names,
)

_PROMPTS = ("prompt", "question", "problem", "query")
_NOT_ANSWERS = frozenset(
    {
        *("reference", "reference_answer", "reference_solution", "ground_truth", "gold"),
        *("gold_answer", "expected", "expected_answer", "expected_output", "answer_key"),
        *("rubric", "rubrics", "criteria", "constraints", "checker", "verifier", "reward_model"),
        *("test", "tests", "test_list", "test_cases", "unit_tests", "entry_point"),
        *("id", "uid", "uuid", "task_id", "question_id", "source", "data_source", "dataset"),
        *("topic", "subject", "category", "type", "difficulty", "level", "ability", "domain"),
        *("tags", "language", "lang", "url", "date", "split", "partition", "dataset_split"),
        *("system", "system_prompt", "metadata", "extra_info"),
    }
)
"""Names of columns of text that hold no answer to learn."""
_NEED_ANSWERS = frozenset({"messages", "sharegpt", "judged"})
"""Shapes whose turns end with an answer."""
_QUESTION = (
    "No column holds answers to learn, so the rows are tasks, whose answers graders score. Is that "
    "right?"
)


def match_turns(table: ColumnTable, named: Sequence[ShapeMatch]) -> Iterator[ShapeMatch]:
    """Match turns that end with the user's, unless another shape has a use for them.

    `named` are the matches of other shapes.
    """
    taken = {
        column
        for match in named
        if match.shape not in _NEED_ANSWERS
        for columns in match.roles.values()
        for column in columns
    }
    for match in named:
        turns = match.roles.get("messages", match.roles.get("conversations", []))
        for column in turns if match.shape != "judged" else ():
            if column in taken or not hold_prompts(table.columns[column]):
                continue
            reason = f"Column {column} holds lists of turns that end with the user's."
            tools = match.roles.get("tools")
            yield build_match("task", reason, match.sureness, messages=column, tools=tools)


def match_prompts(table: ColumnTable, named: Sequence[ShapeMatch]) -> Iterator[ShapeMatch]:
    """Match prompts in a table in which no column seems to hold an answer."""
    prompt = _prompt_columns(table)
    if named or not prompt or table.find_column(ANSWER_LISTS) is not None:
        return
    if not all(is_text(table.columns[name]) for name in prompt):
        return
    others = (name for name in table.text_columns() if name not in prompt)
    if any(name.strip().lower() not in _NOT_ANSWERS for name in others):
        return
    reason = f"Column {join_names(prompt)} holds prompts, and no column holds answers."
    if len(prompt) > 1:
        reason = f"Columns {join_names(prompt)} hold prompts, and no column holds answers."
    tools = table.find_column(TOOLS)
    match = build_match("task", reason, "likely", prompt=prompt, tools=tools)
    yield replace(match, question=_QUESTION)


def _prompt_columns(table: ColumnTable) -> list[str]:
    """Return an instruction with its input, or a prompt of another name with its context."""
    instruction, prompt = table.find_column(["instruction"]), table.find_column(_PROMPTS)
    context = table.find_column(["context"])
    if instruction is not None:
        found = [instruction, table.find_column(["input"]) or context]
    else:
        found = [context, prompt] if prompt is not None else []
    return [name for name in found if name is not None]
