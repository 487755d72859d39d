"""Read texts whose words have tags."""

from collections import Counter
from collections.abc import Sequence

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.intake.quality.answer_facts import AnswerFacts, tag_problem
from studio.intake.row_formats.tagged_words import OUTSIDE
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import TrainingRow
from studio.training.data.tagged_words import tokenise_words
from studio.training.data.tokenisation import Examples


def list_tags(rows: Sequence[TrainingRow]) -> tuple[str, ...]:
    """Return the tags that a model of these rows gives: O, and both tags of each label.

    Raises:
        TrainingError: a row has no tags, or there is no difference to learn.

    """
    for row in rows:
        if not row.tags:
            raise TrainingError(
                "bad_row",
                f"{row.location} has no tags.",
                hint="Choose a dataset of words with tags, or of texts with marked entities.",
            )
    found = Counter(tag for row in rows for tag in row.tags)
    if problem := tag_problem(AnswerFacts(tags=found)):
        raise TrainingError(
            "bad_row",
            problem,
            hint="Check the column mapping, or add other texts: the model learns from differences.",
        )
    labels = sorted({tag[2:] for tag in found if tag != OUTSIDE})
    return (OUTSIDE, *(f"{place}-{label}" for label in labels for place in "BI"))


def tokenise(
    rows: Sequence[TrainingRow],
    _template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise each text; the label of a token is the number of its word in the row for now.

    Which token of a word has its tag depends on the model: see `trainer.build`. A row without any
    whole word within the length is dropped, and counted.
    """
    kept: list[TrainingRow] = []
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    lengths: list[int] = []
    for row in rows:
        ids, numbers, length = tokenise_words(row.text or "", row.words, tokenizer, max_length)
        lengths.append(length)
        if _count_words(numbers):
            kept.append(row)
            columns["input_ids"].append(ids)
            columns["labels"].append(numbers)
    dropped = len(rows) - len(kept)
    return Examples(
        Dataset.from_dict(columns),
        kept,
        dropped=dropped,
        truncated=sum(length > max_length for length in lengths),
        tokens=sum(map(len, columns["input_ids"])),
        longest=max(map(len, columns["input_ids"]), default=0),
        longest_answer=max(map(_count_words, columns["labels"]), default=0),
        longest_row=max(lengths, default=0),
        cut_off=dropped,
    )


def _count_words(numbers: Sequence[int]) -> int:
    return len({*numbers} - {IGNORE_INDEX})
