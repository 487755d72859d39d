"""Prompts to try in a chat: rows that the run held out for validation, with expected answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from studio.db.tables import DatasetVersion, Run, Sample
from studio.intake.row_formats.image_marks import find_marks
from studio.intake.row_formats.schema import make_turn
from studio.intake.row_formats.tasks import reference_text
from studio.intake.rows import validation_rows
from studio.intake.rows.paging import NumberedRow
from studio.methods import METHODS
from studio.services.datasets import image_addresses, versions
from studio.services.datasets.versions import RowQuery

COUNT = 3
_ROWS_READ = 12
"""Some rows cannot be typed into a chat, such as calls of tools."""

_MAX_CHARS = 20_000
"""Longer rows are not suggested: they would fill the page."""

MAX_LINKED_CHARS = 4000
"""The longest message that the address of a chat may carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedPrompt:
    """A prompt from a validation row."""

    messages: Sequence[Mapping[str, Any]]
    """The conversation up to the answer; for a text, one user message with its beginning. As in
    OpenAI's API: a message with images has parts, with the address of each image here."""
    expected: str

    @property
    def text(self) -> str:
        """The words of the last message, which the user sends."""
        return _read_words(self.messages[-1])

    @property
    def images(self) -> Sequence[str]:
        """The addresses of the images of the last message."""
        content = self.messages[-1]["content"]
        parts = content if isinstance(content, list) else ()
        return [part["image_url"]["url"] for part in parts if "image_url" in part]


def trains_on_text(db: Session, run: Run) -> bool:
    """Whether a run trained on plain text, so that its model continues texts."""
    version = versions.find_for_run(db, run)
    if version is not None:
        return version.kind == "text"
    return next(iter(METHODS[run.recipe.method].trains_on)) == "text"


def list_prompts(db: Session, run: Run, datasets: Path) -> list[SuggestedPrompt]:
    """Return a few validation rows of a run as prompts, the same ones it sampled answers to."""
    version = versions.find_for_run(db, run)
    rows = read_held_out(run, version, datasets) if version else []
    images = image_addresses.of_version(version)
    prompts = [prompt for row in rows if (prompt := to_prompt(row.row, images))]
    return (prompts or _sampled_prompts(db, run))[:COUNT]


def read_held_out(
    run: Run, version: DatasetVersion, datasets: Path, limit: int = _ROWS_READ
) -> Sequence[NumberedRow]:
    """Return the first rows that a run held out for validation; none if they have been deleted."""
    try:
        if version.validation_rows:
            query = RowQuery(part="validation")
        elif version.kind == "judged":
            return []  # Only rows rated good count, so the rows held out are not known here.
        else:
            query = RowQuery(numbers=_held_out_numbers(run, version.train_rows))
        return versions.load_rows(datasets, version, query, limit=limit).rows
    except OSError:
        return []  # The rows have been deleted.


def _held_out_numbers(run: Run, count: int) -> frozenset[int]:
    share, seed = run.recipe.data.validation_share, run.recipe.optimisation.seed
    return frozenset(index + 1 for index in validation_rows.validation_indices(count, share, seed))


def to_prompt(row: Mapping[str, Any], images: str = "") -> SuggestedPrompt | None:
    """Return a row as a prompt; None if it cannot be typed into a chat.

    `images` is where its images are served, up to their checksum.
    """
    if "text" in row:
        start, rest = validation_rows.split_text(row["text"])
        return _short_prompt([{"role": "user", "content": start}], rest)
    turns = [*row.get("messages", []), *row.get("chosen", [])]
    if "item" in row:
        turns.append(make_turn("assistant", reference_text(row["item"])))
    answers = [i for i, turn in enumerate(turns) if _is_trained_answer(turn)]
    if not answers or row.get("tools"):
        return None
    before = turns[: answers[-1]]
    if not before or before[-1]["role"] != "user" or any(map(_uses_tools, turns)):
        return None
    messages = [{"role": turn["role"], "content": _to_content(turn, images)} for turn in before]
    return _short_prompt(messages, turns[answers[-1]]["content"])


def _to_content(turn: Mapping[str, Any], images: str) -> str | list[dict[str, Any]]:
    """Return what a turn says: text, or parts if it has images."""
    text, start, parts = turn["content"], 0, list[dict[str, Any]]()
    for image in turn.get("images") or ():
        if words := text[start : image["at"]]:
            parts.append({"type": "text", "text": words})
        start = max(start, image["at"])
        parts.append({"type": "image_url", "image_url": {"url": images + image["sha256"]}})
    if not parts:
        return str(text)
    return [*parts, {"type": "text", "text": text[start:]}] if text[start:] else parts


def _read_words(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _short_prompt(messages: list[dict[str, Any]], expected: str) -> SuggestedPrompt | None:
    prompt = SuggestedPrompt(messages=messages, expected=expected)
    if not prompt.text.strip() and not prompt.images:
        return None
    if sum(len(_read_words(message)) for message in messages) + len(expected) > _MAX_CHARS:
        return None
    return prompt


def _is_trained_answer(turn: Mapping[str, Any]) -> bool:
    return bool(turn["role"] == "assistant" and turn.get("weight", 1) != 0)


def _uses_tools(turn: Mapping[str, Any]) -> bool:
    return turn["role"] == "tool" or bool(turn.get("tool_calls"))


def _sampled_prompts(db: Session, run: Run) -> list[SuggestedPrompt]:
    """Return the prompts of the run's sample answers, if its rows cannot be read any more."""
    query = select(Sample).where(Sample.run_id == run.id).order_by(col(Sample.position))
    return list(_distinct_prompts(db.exec(query.limit(_ROWS_READ)).all()))


def _distinct_prompts(samples: Sequence[Sample]) -> Iterator[SuggestedPrompt]:
    seen: set[int] = set()
    for sample in samples:
        has_images = find_marks(sample.prompt).images  # They are gone with the rows.
        if sample.position not in seen and sample.prompt.strip() and not has_images:
            seen.add(sample.position)
            messages = [{"role": "user", "content": sample.prompt}]
            yield SuggestedPrompt(messages=messages, expected=sample.reference)
