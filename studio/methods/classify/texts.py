"""Read texts with their labels."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.intake.quality.answer_facts import max_labels
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow
from studio.training.data.text_batches import tokenise_prompts
from studio.training.data.tokenisation import Examples


def labels_of(row: TrainingRow) -> Sequence[str]:
    """Return the labels of a row: those listed beside its last answer, or that answer.

    Raises:
        TrainingError: it has none.

    """
    last = row.messages[-1] if row.messages else {}
    if last.get("role") != "assistant" or len(row.messages) == 1:
        raise TrainingError(
            "bad_row",
            f"{row.location} has no label.",
            hint="Choose a dataset of texts and labels: the label is the last answer.",
        )
    return (str(last["content"]).strip(),) if row.labels is None else row.labels


def has_several(rows: Sequence[TrainingRow]) -> bool:
    """Whether some rows have several labels, or none."""
    return any(len(labels_of(row)) != 1 for row in rows)


def list_labels(rows: Sequence[TrainingRow]) -> tuple[str, ...]:
    """Return the labels of the rows in alphabetical order.

    Raises:
        TrainingError: there is only one, or the answers are no labels.

    """
    labels = sorted({label for row in rows for label in labels_of(row)})
    if len(labels) == 1 and not has_several(rows):
        raise TrainingError(
            "bad_row",
            f'All {len(rows):,} rows have the label "{labels[0]}".',
            hint="Add rows with other labels: the model learns from the difference.",
        )
    if not labels or len(labels) > max_labels(len(rows)):
        raise TrainingError(
            "bad_row",
            f"The {len(rows):,} rows have {len(labels):,} different answers, so these are not "
            "labels.",
            hint="Check the column mapping, or choose Learn from answers.",
        )
    return tuple(labels)


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise what comes before the label, as a prompt; cut it at the end.

    Raises:
        TrainingError: a row has no label, or the chat template cannot render it.

    """
    for row in rows:
        labels_of(row)
    return tokenise_prompts(rows, template, tokenizer, max_length)
