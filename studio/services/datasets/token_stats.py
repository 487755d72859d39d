"""Token statistics of a dataset: rows counted by a task, and what they mean for a recipe.

Statistics belong to rows, a tokenizer and a chat template, and are computed once: the task that
counted them keeps them while any version has those rows. If the tokenizer changes, they expire.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
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
from studio.methods import AnyRecipe
from studio.services.datasets import datasets, versions
from studio.services.models import models, remote_code_trust
from studio.services.precision.incompatibilities import Refusal
from studio.services.tasks import tasks
from studio.settings import Settings

KIND = "stats"
PART_NAMES = {"train": "training", "validation": "validation"}
"""Names of the parts of a dataset as shown to users."""

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

    @property
    def subject(self) -> str:
        return f"rows:{self.version.sha256}:{self.chat_template}:{self.model}"

    @property
    def state(self) -> str:
        """Return a fingerprint that changes with the tokenizer."""
        told = [self.location]
        for path in (Path(self.location) / name for name in _TOKENIZER_FILES):
            if path.is_absolute() and path.is_file():
                known = path.stat()
                told.append(f"{path.name} {known.st_size} {known.st_mtime_ns}")
        return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def build_request(
    db: Session, version: DatasetVersion, model: str, chat_template: str
) -> StatsRequest:
    """Return a request for token statistics.

    Raises:
        InvalidError: There is no such model, or it may not be used.

    """
    return StatsRequest(
        version=version,
        model=model,
        location=models.require(db, model),
        chat_template=chat_template,
    )


def enqueue(db: Session, settings: Settings, wanted: StatsRequest) -> Task:
    """Queue a token count; return the existing task if it is counted or being counted."""
    chore = latest_task(db, wanted)
    if chore is not None and chore.status not in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
        return chore
    for past in tasks.list_for_subject(db, wanted.subject):
        if past.status.is_final and past.pid is None:
            db.delete(past)
    train, validation = versions.row_files(settings.datasets, wanted.version)
    name = datasets.get(db, wanted.version.dataset_id).name
    asked = TokenCountJob.model_validate(
        {
            "about": f"of {name}, version {wanted.version.number}, for {wanted.model}",
            "rows": wanted.version.sha256,
            "state": wanted.state,
            "model": wanted.location,
            "code": remote_code_trust.allowed_code_hash(models.find_by_name(db, wanted.model)),
            "chat_template": wanted.chat_template,
            "train": train,
            "validation": validation,
        }
    )
    return tasks.enqueue(db, KIND, wanted.subject, asked.model_dump(mode="json"))


def latest_task(db: Session, wanted: StatsRequest) -> Task | None:
    """Return the newest task for exactly this request."""
    state = wanted.state
    found = (
        one for one in tasks.list_for_subject(db, wanted.subject) if one.params["state"] == state
    )
    return next(found, None)


def find_stats(db: Session, wanted: StatsRequest) -> TokenStats | None:
    """Return the statistics, if they were counted."""
    chore = latest_task(db, wanted)
    return parse_result(chore) if chore else None


def parse_result(chore: Task) -> TokenStats | None:
    """Return the statistics that a task has counted, if it has succeeded."""
    return TOKEN_STATS_ADAPTER.validate_python(chore.result) if chore.result else None


def find_for_recipe(db: Session, recipe: AnyRecipe) -> TokenStats | None:
    """Return the statistics of a recipe's rows for its model, if they were counted."""
    try:
        version = versions.require(db, recipe.dataset)
        return find_stats(
            db, build_request(db, version, recipe.base_model, recipe.data.chat_template)
        )
    except (InvalidError, OSError):  # The field itself shows this error.
        return None


def cleanup(db: Session) -> None:
    """Delete statistics of rows that no version has any longer."""
    there = set(db.exec(select(DatasetVersion.sha256)))
    for chore in db.exec(select(Task).where(Task.kind == KIND)):
        if chore.status.is_final and chore.params["rows"] not in there:
            db.delete(chore)


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why the rows cannot be trained on; an empty list if they can or were not counted."""
    found = find_for_recipe(db, recipe)
    if found is None:
        return []
    for name, part in found.parts.items():
        if part.refused:
            return [_template_refusal(name, part, recipe)]
    for name, part in found.parts.items():
        if _has_nothing_to_learn(part, recipe.data.max_length):
            return [_nothing_to_learn(name, part, recipe.data.max_length)]
    return []


def list_warnings(db: Session, recipe: AnyRecipe) -> Iterator[str]:
    """Yield how many rows the max sequence length truncates, as far as it is known."""
    found = find_for_recipe(db, recipe)
    if found is None:
        return
    parts = list(found.parts.values())
    lost = length_stats.measure_truncation(parts, recipe.data.max_length)
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
    told = f"{lost.rows:,} of {lost.total_rows:,} rows will be {at}"
    if not lost.is_exact:
        told = f"About {lost.rows:,} of {lost.total_rows:,} rows will be {at}"
    if lost.emptied:
        told = f"{told}, {lost.emptied:,} of them before their answer"
    return f"{told}."


def suggest_length(part: PartStats) -> int:
    """Return a length that truncates few rows and leaves tokens to train on."""
    length = max(length_stats.length_quantile(part, _WHOLE_SHARE), min(part.needs.times, default=0))
    return min(-(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, length_stats.MAX_LENGTH)


def _has_nothing_to_learn(part: PartStats, length: int) -> bool:
    """Return whether no token would be trained on."""
    return part.rows > 0 and part.needs.count_above(length) + part.unlearnt == part.rows


def _nothing_to_learn(name: str, part: PartStats, length: int) -> Refusal:
    what = PART_NAMES[name]
    if part.unlearnt == part.rows:
        return Refusal(
            message=f"None of the {part.rows:,} rows of the {what} data has an answer to train on.",
            hint="Check the column mapping: answers must be assistant turns.",
            param="dataset",
        )
    enough = suggest_length(part)
    return Refusal(
        message=f"No tokens of the {what} data would be trained on: rows are truncated to "
        f"{length:,} tokens, before their answers begin.",
        hint=f"Set the max sequence length to {enough:,}.",
        param="data.max_length",
        repair={"data": {"max_length": enough}},
    )


def _template_refusal(name: str, part: PartStats, recipe: AnyRecipe) -> Refusal:
    reason, rows = next(iter(part.refused.items()))
    others = sum(one.rows for one in part.refused.values()) - 1
    beside = f", and {others:,} more" if others else ""
    has_other = recipe.data.chat_template != "chatml"
    return Refusal(
        message=f"Row {rows.numbers[0]:,} of the {PART_NAMES[name]} data{beside} cannot be "
        f"formatted with this chat template: {reason}.",
        hint="Use the ChatML template." if has_other else "Exclude these rows from the dataset.",
        param="data.chat_template",
        repair={"data": {"chat_template": "chatml"}} if has_other else {},
    )
