"""Tokenise solutions whose steps are right or wrong."""

from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from studio.intake.row_formats.schema import STEP_SEPARATOR
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow


def tokenise_steps(
    row: TrainingRow, template: ChatTemplate, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt and its steps, and their labels.

    The last token of a step has its verdict as its label: 1 if it is right. Each step is tokenised
    by itself, so that it ends with a token of its own.

    Raises:
        TrainingError: the chat template cannot render the prompt.

    """
    prompt = template.render_prompt(row.messages[:-1])
    ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    labels = [IGNORE_INDEX] * len(ids)
    for step, is_right in zip(pieces(row.steps), row.correct, strict=True):
        own: list[int] = tokenizer(step, add_special_tokens=False)["input_ids"]
        ids.extend(own)
        labels.extend([IGNORE_INDEX] * (len(own) - 1) + [int(is_right)])
    return ids, labels


def pieces(steps: Sequence[str]) -> Iterator[str]:
    """Yield each step as the model reads it: ended by the separator."""
    return (f"{step}{STEP_SEPARATOR}" for step in steps)
