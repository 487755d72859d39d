"""Read rows as tasks: prompts that a model answers, and what graders may read to score that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.intake.row_formats.tasks import REFERENCE, answer_text, split_answer
from studio.training.data.rows import Message, Tool, TrainingRow


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and what graders may read beside the answer."""

    messages: Sequence[Message]
    """The prompt; the model answers its last turn."""
    tools: Sequence[Tool]
    item: Mapping[str, Any]
    """What graders read as `item`: columns, and the prompt as `messages`."""


def to_task(row: TrainingRow) -> Task | None:
    """Return a row as a task; None if no user asks anything in it.

    Of a conversation, the turns before its last answer are the prompt, and graders read that answer
    as `item.reference_answer`.
    """
    prompt, answer = split_answer(row.messages)
    if all(turn["role"] != "user" for turn in prompt):
        return None
    item = dict(row.item) if row.is_task else {}
    if answer:
        item[REFERENCE] = answer_text(answer)
    return Task(messages=prompt, tools=row.tools, item={"messages": prompt} | item)
