"""Rows as text: what a model reads of them, and what it should say of that."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from studio.evaluation.reading_scores import RIGHT, WRONG, write_numbers
from studio.evaluation.rows import AnswerKind
from studio.intake.row_formats.tagged_words import find_entities
from studio.methods.classify.texts import labels_of
from studio.methods.regress.trainer import numbers_of
from studio.training.data.prompt_answer import prompt_text
from studio.training.data.rows import Message, TrainingRow


def prompt_of(kind: AnswerKind, row: TrainingRow) -> str:
    """Return what is shown of a row as the text that was read."""
    if row.text is not None:
        return row.text
    if kind == "score":
        return prompt_text(row.messages[: row.prompt_turns])
    return "\n".join([prompt_text(row.messages[:-1]), *row.steps])


def reference_of(kind: AnswerKind, row: TrainingRow) -> str:
    """Return what a model should say of a row.

    Raises:
        TrainingError: the row has no label, or no number.

    """
    return _REFERENCES[kind](row)


def write_labels(labels: Iterable[str]) -> str:
    """Return labels as lines."""
    return "\n".join(sorted(map(_one_line, labels)))


def write_entities(words: Sequence[str], tags: Sequence[str]) -> str:
    """Return the entities that tags mark as lines: label, words, and the place of these."""
    return "\n".join(
        f"{_one_line(label)}: {_one_line(' '.join(words[start:end]))} {_place(start + 1, end)}"
        for start, end, label in find_entities(tags)
    )


def _place(first: int, last: int) -> str:
    return f"({first})" if first == last else f"({first}-{last})"


def write_verdicts(correct: Iterable[bool]) -> str:
    """Return verdicts on steps as lines."""
    return "\n".join(
        f"{number} {RIGHT if is_right else WRONG}" for number, is_right in enumerate(correct, 1)
    )


def chosen_of(row: TrainingRow) -> str:
    """Return the better answer of a preference."""
    return _answer_text(row.messages[row.prompt_turns :])


def rejected_of(row: TrainingRow) -> str:
    """Return the worse answer of a preference."""
    return _answer_text(row.rejected)


def _answer_text(turns: Sequence[Message]) -> str:
    return "\n".join(str(turn.get("content") or "") for turn in turns).strip()


def _write_numbers(row: TrainingRow) -> str:
    return write_numbers({name: f"{one:.15g}" for name, one in numbers_of(row).items()})


def _one_line(text: str) -> str:
    return " ".join(text.split())


_REFERENCES: Mapping[AnswerKind, Callable[[TrainingRow], str]] = {
    "label": lambda row: write_labels(labels_of(row)),
    "number": _write_numbers,
    "score": chosen_of,
    "steps": lambda row: write_verdicts(row.correct),
    "entities": lambda row: write_entities(row.words, row.tags),
}
