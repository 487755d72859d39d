"""The vocabulary of a tokenizer, and whether a student and its teacher have the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from studio.errors import InvalidError
from studio.weights import model_files

HINT = "Choose a teacher of the same family, or one that was trained from the base model."
_ENDS_HINT = "Choose two models of one kind: both trained on conversations, or neither."
_TOKENIZER_FILE = "tokenizer.json"
_MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer."""

    ids: Mapping[str, int]
    special: Mapping[str, str] = field(default_factory=dict)
    """The tokens that begin and end a text, by upstream's names: `bos_token` and `eos_token`."""


@dataclass(frozen=True, slots=True)
class VocabularyProblem:
    """Why a teacher cannot teach a student."""

    message: str
    hint: str


def find_problem(student: Vocabulary, teacher: Vocabulary) -> VocabularyProblem | None:
    """Return how the vocabularies of a student and its teacher differ; None if they do not.

    A special token that only one of them names is no difference: its files may not tell.
    """
    if student.ids != teacher.ids:
        return VocabularyProblem(_describe_difference(student.ids, teacher.ids), HINT)
    own, other = (one.special.get("bos_token") for one in (student, teacher))
    if own and other and own != other:
        message = f"The teacher begins a text with {other}, but the base model with {own}."
        return VocabularyProblem(message, _ENDS_HINT)
    own, other = (one.special.get("eos_token") for one in (student, teacher))
    if own and other and own != other:
        message = f"The teacher ends a text with {other}, but the base model with {own}."
        return VocabularyProblem(message, _ENDS_HINT)
    return None


def read(folder: Path) -> Vocabulary | None:
    """Return the vocabulary of a model's folder; None if its files do not show it."""
    path = folder / _TOKENIZER_FILE
    try:
        stat = path.stat()
        return None if stat.st_size > _MAX_BYTES else _read_cached(path, stat.st_mtime_ns)
    except (OSError, ValueError, RecursionError, InvalidError):
        return None


def _describe_difference(student: Mapping[str, int], teacher: Mapping[str, int]) -> str:
    own, other = len(student), len(teacher)
    if unknown := [token for token in student if token not in teacher]:
        count, first = len(unknown), unknown[0]
        return (
            f"The teacher has another tokenizer than the base model: it lacks {count:,} of its "
            f"{own:,} tokens, such as {first!r}."
        )
    if extra := [token for token in teacher if token not in student]:
        return (
            f"The teacher has another tokenizer than the base model: {other:,} tokens instead of "
            f"{own:,}, such as {extra[0]!r}."
        )
    moved = next(token for token, number in student.items() if teacher[token] != number)
    return (
        f"The teacher has another tokenizer than the base model: the number of {moved!r} is "
        f"{teacher[moved]} instead of {student[moved]}."
    )


@lru_cache(maxsize=4)
def _read_cached(path: Path, _changed: int) -> Vocabulary | None:
    content = json.loads(path.read_bytes())
    ids = _token_ids(content) if isinstance(content, dict) else {}
    if not ids:
        return None
    config = model_files.read_small_json(path.parent / model_files.TOKENIZER_CONFIG_FILE)
    names = {name: _text(config.get(name)) for name in ("bos_token", "eos_token")}
    return Vocabulary(ids, {name: text for name, text in names.items() if text})


def _token_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of a fast tokenizer's file: a table, or a list in their order."""
    match content.get("model"):
        case {"vocab": dict(table)}:
            ids = dict(table)
        case {"vocab": list(pieces)}:
            ids = {piece[0]: number for number, piece in enumerate(pieces)}
        case _:
            return {}
    added = content.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        match token:
            case {"content": str(text), "id": int(number)}:
                ids[text] = number
    return ids


def _text(token: Any) -> str:  # noqa: ANN401 -- JSON
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
