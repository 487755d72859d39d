"""Token statistics of a dataset: rows counted by a task, and what they mean for a recipe.

Statistics belong to rows, a tokenizer and a chat template, and are computed once: the task that
counted them keeps them while any version has those rows. If the tokenizer changes, they expire.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sqlmodel import Session, select

from studio.db.states import TaskStatus
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.errors import InvalidError
from studio.intake.quality import length_stats
from studio.intake.quality.length_stats import (
    TOKEN_STATS_ADAPTER,
    PartStats,
    TokenCountJob,
    TokenStats,
    Truncation,
)
from studio.methods import METHODS, AnyRecipe
from studio.services.datasets import datasets, versions
from studio.services.models import models, remote_code_trust
from studio.services.precision.incompatibilities import Refusal
from studio.services.tasks import tasks
from studio.settings import Settings

KIND = "stats"
PART_NAMES = {"train": "training", "validation": "validation"}
"""Names of the parts of a dataset as shown to users."""

_ANSWERED_BESIDE = frozenset({"label", "number", "entities", "vector", "relevance"})
"""Outputs that are learned beside a text: truncating it never removes them."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""The files of a tokenizer that are checked for changes."""
_WHOLE_SHARE = 0.95
"""The share of rows that a suggested length does not truncate."""
_LENGTH_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsRequest:
    """The rows to count, and the model and template to count them with."""

    version: DatasetVersion
    model: str
    """As recipes name it."""
    location: str
    """A folder, or a name on the Hugging Face Hub."""
    chat_template: str
    with_bad: bool = False
    """Whether answers that are rated bad count, too, and the worse ones of pairs."""

    @property
    def subject(self) -> str:
        rated = ":rated" if self.with_bad else ""
        return f"rows:{self.version.sha256}:{self.chat_template}{rated}:{self.model}"

    @property
    def state(self) -> str:
        """Return a fingerprint that changes with the tokenizer."""
        parts = [self.location]
        for path in (Path(self.location) / name for name in _TOKENIZER_FILES):
            if path.is_absolute() and path.is_file():
                file_stat = path.stat()
                parts.append(f"{path.name} {file_stat.st_size} {file_stat.st_mtime_ns}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def build_request(
    db: Session,
    version: DatasetVersion,
    model: str,
    chat_template: str,
    *,
    with_bad: bool = False,
) -> StatsRequest:
    """Return a request for token statistics.

    Raises:
        InvalidError: There is no such model, or it may not be used.

    """
    return StatsRequest(
        version=version,
        model=model,
        location=models.require(db, model),
        chat_template="none" if models.reads_plain_text(db, model) else chat_template,
        with_bad=with_bad and version.kind in {"judged", "preference"},
    )


def recipe_request(db: Session, recipe: AnyRecipe) -> StatsRequest:
    """Return the request that counts a recipe's tokens.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    version = versions.require(db, recipe.dataset)
    template = recipe.data.chat_template
    with_bad = METHODS[recipe.method].reads_bad_answers
    return build_request(db, version, recipe.base_model, template, with_bad=with_bad)


def enqueue(db: Session, settings: Settings, request: StatsRequest) -> Task:
    """Queue a token count; return the existing task if it is counted or being counted."""
    task = latest_task(db, request)
    if task is not None and task.status not in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
        return task
    for past in tasks.list_for_subject(db, request.subject):
        if past.status.is_final and past.pid is None:
            db.delete(past)
    train, validation = versions.row_files(settings.datasets, request.version)
    name = datasets.get(db, request.version.dataset_id).name
    job = TokenCountJob.model_validate(
        {
            "about": f"of {name}, version {request.version.number}, for {request.model}",
            "rows": request.version.sha256,
            "state": request.state,
            "model": request.location,
            "code": remote_code_trust.allowed_code_hash(models.find_by_name(db, request.model)),
            "chat_template": request.chat_template,
            "with_bad": request.with_bad,
            "train": train,
            "validation": validation,
        }
    )
    return tasks.enqueue(db, KIND, request.subject, job.model_dump(mode="json"))


def latest_task(db: Session, request: StatsRequest) -> Task | None:
    """Return the newest task for exactly this request."""
    state = request.state
    return tasks.latest(db, KIND, request.subject, lambda task: task.params["state"] == state)


def find_stats(db: Session, request: StatsRequest) -> TokenStats | None:
    """Return the statistics, if they were counted."""
    task = latest_task(db, request)
    return parse_result(task) if task else None


def parse_result(task: Task) -> TokenStats | None:
    """Return the statistics that a task has counted, if it has succeeded."""
    return TOKEN_STATS_ADAPTER.validate_python(task.result) if task.result else None


def find_for_recipe(db: Session, recipe: AnyRecipe) -> TokenStats | None:
    """Return the statistics of a recipe's rows for its model, if they were counted."""
    try:
        return find_stats(db, recipe_request(db, recipe))
    except (InvalidError, OSError):  # The field itself shows this error.
        return None


def cleanup(db: Session) -> None:
    """Delete statistics of rows that no version has any longer."""
    checksums = set(db.exec(select(DatasetVersion.sha256)))
    for task in db.exec(select(Task).where(Task.kind == KIND)):
        if task.status.is_final and task.params["rows"] not in checksums:
            db.delete(task)


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why the rows cannot be trained on; an empty list if they can or were not counted."""
    stats = find_for_recipe(db, recipe)
    if stats is None:
        return []
    for name, part in stats.parts.items():
        if part.refused:
            return [_template_refusal(name, part, recipe)]
    if recipe.outputs in _ANSWERED_BESIDE:
        return []
    for name, part in stats.parts.items():
        if _has_nothing_to_learn(part, _truncation(db, recipe)):
            return [_nothing_to_learn(name, part, recipe.data.max_length)]
    return []


def list_warnings(db: Session, recipe: AnyRecipe) -> Iterator[str]:
    """Yield how many rows the max sequence length truncates, as far as it is known."""
    stats = find_for_recipe(db, recipe)
    if stats is None:
        return
    parts = list(stats.parts.values())
    lost = length_stats.measure_truncation(parts, _truncation(db, recipe))
    if recipe.outputs in _ANSWERED_BESIDE:
        lost, parts = replace(lost, emptied=0), []
    if lost.rows and not any(_has_nothing_to_learn(part, lost.at) for part in parts):
        yield describe_truncation(lost)


def describe_truncation(lost: Truncation) -> str:
    """Return how many rows a length truncates, as a sentence."""
    at = "truncated to 1 token" if lost.at == 1 else f"truncated to {lost.at:,} tokens"
    if not lost.rows:
        return (
            f"None of {lost.total_rows:,} rows will be {at}."
            if lost.total_rows > 1
            else f"No row will be {at}."
        )
    sentence = f"{lost.rows:,} of {lost.total_rows:,} rows will be {at}"
    if not lost.is_exact:
        sentence = f"About {lost.rows:,} of {lost.total_rows:,} rows will be {at}"
    if lost.emptied and lost.has_pairs:
        return (
            f"{sentence}; in {lost.emptied:,} of them, no difference between the answers is left, "
            "so training leaves these rows out."
        )
    if lost.emptied:
        sentence = f"{sentence}, {lost.emptied:,} of them before their answer"
    return f"{sentence}."


def suggest_length(part: PartStats) -> int:
    """Return a length that truncates few rows and leaves tokens to train on."""
    length = max(length_stats.length_quantile(part, _WHOLE_SHARE), min(part.needs.times, default=0))
    return min(-(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, length_stats.MAX_LENGTH)


def _truncation(db: Session, recipe: AnyRecipe) -> int:
    """Return the length at which rows are truncated.

    Without a chat template, prompts and answers are truncated apart, and rows were counted whole.
    An encoder truncates texts to the positions it has.
    """
    if not recipe.has_chat_template:
        return length_stats.MAX_LENGTH
    limit = models.max_tokens(db, recipe.base_model)
    return min(recipe.data.max_length, limit or recipe.data.max_length)


def _has_nothing_to_learn(part: PartStats, length: int) -> bool:
    """Return whether no token would be trained on."""
    return part.rows > 0 and part.needs.count_above(length) + part.unlearnt == part.rows


def _nothing_to_learn(name: str, part: PartStats, length: int) -> Refusal:
    part_name = PART_NAMES[name]
    if part.unlearnt == part.rows:
        return Refusal(
            message=(
                f"None of the {part.rows:,} rows of the {part_name} data has an answer to train on."
            ),
            hint="Check the column mapping: answers must be assistant turns.",
            param="dataset",
        )
    suggested_length = suggest_length(part)
    return Refusal(
        message=f"No tokens of the {part_name} data would be trained on: rows are truncated to "
        f"{length:,} tokens, before their answers begin.",
        hint=f"Set the max sequence length to {suggested_length:,}.",
        param="data.max_length",
        repair={"data": {"max_length": suggested_length}},
    )


def _template_refusal(name: str, part: PartStats, recipe: AnyRecipe) -> Refusal:
    reason, rows = next(iter(part.refused.items()))
    others = sum(refused_rows.rows for refused_rows in part.refused.values()) - 1
    suffix = f", and {others:,} more" if others else ""
    has_other = recipe.data.chat_template != "chatml"
    return Refusal(
        message=f"Row {rows.numbers[0]:,} of the {PART_NAMES[name]} data{suffix} cannot be "
        f"formatted with this chat template: {reason}.",
        hint="Use the ChatML template." if has_other else "Exclude these rows from the dataset.",
        param="data.chat_template",
        repair={"data": {"chat_template": "chatml"}} if has_other else {},
    )
