"""Read solutions whose steps are right or wrong."""

from collections.abc import Sequence

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rated_steps import tokenise_steps
from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Examples


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise each prompt and its steps; the last token of a step has its verdict as its label.

    Steps that are cut off are not learned from; a row without any other is dropped, and counted.

    Raises:
        TrainingError: a row has no steps, or the chat template cannot render it.

    """
    assert template is not None  # noqa: S101 -- rows with steps are conversations
    kept: list[TrainingRow] = []
    found: list[tuple[list[int], list[int]]] = []
    lengths: list[int] = []
    for row in rows:
        if not row.steps:
            raise TrainingError(
                "bad_row",
                f"Steps are missing in {row.location}.",
                hint="Choose a dataset of solutions whose steps are marked as right or wrong.",
            )
        ids, labels = tokenise_steps(row, template, tokenizer)
        lengths.append(len(ids))
        if _count(labels[:max_length]):
            kept.append(row)
            found.append((ids[:max_length], labels[:max_length]))
    return Examples(
        Dataset.from_dict(
            {"input_ids": [ids for ids, _ in found], "labels": [labels for _, labels in found]}
        ),
        kept,
        dropped=len(rows) - len(kept),
        truncated=sum(length > max_length for length in lengths),
        tokens=sum(len(ids) for ids, _ in found),
        longest=max((len(ids) for ids, _ in found), default=0),
        longest_answer=max((_count(labels) for _, labels in found), default=0),
        longest_row=max(lengths, default=0),
    )


def refuse_equal_verdicts(rows: Sequence[TrainingRow]) -> None:
    """Refuse rows from which no difference can be learned.

    Raises:
        TrainingError: all steps are right, or all are wrong.

    """
    verdicts = {one for row in rows for one in row.correct}
    if len(verdicts) == 1:
        raise TrainingError(
            "bad_row",
            "All steps are right." if True in verdicts else "All steps are wrong.",
            hint="Add solutions with right and with wrong steps: the model learns the difference.",
        )


def _count(labels: Sequence[int]) -> int:
    """Return how many steps end within these tokens."""
    return sum(label != IGNORE_INDEX for label in labels)
