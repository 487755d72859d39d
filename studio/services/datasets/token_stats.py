"""Statistics of a data set: its rows counted in tokens by a chore, and what they say of a recipe.

They belong to rows, a model's tokenizer and a chat template, and are counted once: the chore that
has counted them keeps them for as long as some version has those rows. Where the tokenizer has
changed since, they are of the past.
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
"""What a person calls the parts of a data set."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""The files that say how a model reads, as far as their change is looked for."""
_WHOLE_SHARE = 0.95
"""The share of rows that a length we propose leaves whole."""
_LENGTH_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsRequest:
    """What is counted, and as which model sees it."""

    version: DatasetVersion
    model: str
    """As recipes name it."""
    location: str
    """A folder, or a name on the hub."""
    chat_template: str

    @property
    def subject(self) -> str:
        return f"rows:{self.version.sha256}:{self.chat_template}:{self.model}"

    @property
    def state(self) -> str:
        """Return what changes with the tokenizer."""
        told = [self.location]
        for path in (Path(self.location) / name for name in _TOKENIZER_FILES):
            if path.is_absolute() and path.is_file():
                known = path.stat()
                told.append(f"{path.name} {known.st_size} {known.st_mtime_ns}")
        return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def build_request(
    db: Session, version: DatasetVersion, model: str, chat_template: str
) -> StatsRequest:
    """Say what to count.

    Raises:
        InvalidError: there is no such model, or it may not be used.

    """
    return StatsRequest(
        version=version,
        model=model,
        location=models.require(db, model),
        chat_template=chat_template,
    )


def enqueue(db: Session, settings: Settings, wanted: StatsRequest) -> Task:
    """Have the tokens counted; where they are counted already, or are being, that is the answer."""
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
    """Return the newest chore that counts, or has counted, just this."""
    state = wanted.state
    found = (
        one for one in tasks.list_for_subject(db, wanted.subject) if one.params["state"] == state
    )
    return next(found, None)


def find_stats(db: Session, wanted: StatsRequest) -> TokenStats | None:
    """Return what was counted, if it was."""
    chore = latest_task(db, wanted)
    return parse_result(chore) if chore else None


def parse_result(chore: Task) -> TokenStats | None:
    """Return what a chore has counted, if it has ended well."""
    return TOKEN_STATS_ADAPTER.validate_python(chore.result) if chore.result else None


def find_for_recipe(db: Session, recipe: AnyRecipe) -> TokenStats | None:
    """Return what is known of the rows that a recipe learns from, as its model sees them."""
    try:
        version = versions.require(db, recipe.dataset)
        return find_stats(
            db, build_request(db, version, recipe.base_model, recipe.data.chat_template)
        )
    except (InvalidError, OSError):  # That is told beside its own field.
        return None


def cleanup(db: Session) -> None:
    """Forget what was counted of rows that no version has any more."""
    there = set(db.exec(select(DatasetVersion.sha256)))
    for chore in db.exec(select(Task).where(Task.kind == KIND)):
        if chore.status.is_final and chore.params["rows"] not in there:
            db.delete(chore)


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why the rows could not be learnt; nothing if they can, or were never counted."""
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
    """Tell what is lost to the longest example, as far as it is known."""
    found = find_for_recipe(db, recipe)
    if found is None:
        return
    parts = list(found.parts.values())
    lost = length_stats.measure_truncation(parts, recipe.data.max_length)
    if lost.rows and not any(_has_nothing_to_learn(part, lost.at) for part in parts):
        yield describe_truncation(lost)


def describe_truncation(lost: Truncation) -> str:
    """Say what a cut does to how many of the rows."""
    at = "cut at 1 token" if lost.at == 1 else f"cut at {lost.at:,} tokens"
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
    """Return a length of examples that leaves most rows whole, and something of some to learn."""
    length = max(length_stats.length_quantile(part, _WHOLE_SHARE), min(part.needs.times, default=0))
    return min(-(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, length_stats.MAX_LENGTH)


def _has_nothing_to_learn(part: PartStats, length: int) -> bool:
    """Whether nothing of it would be left to learn."""
    return part.rows > 0 and part.needs.count_above(length) + part.unlearnt == part.rows


def _nothing_to_learn(name: str, part: PartStats, length: int) -> Refusal:
    what = PART_NAMES[name]
    if part.unlearnt == part.rows:
        return Refusal(
            message=f"None of the {part.rows:,} rows of the {what} data has an answer to learn.",
            hint="See whether the columns were mapped rightly: answers must be assistant turns.",
            param="dataset",
        )
    enough = suggest_length(part)
    return Refusal(
        message=f"Nothing is left to learn of the {what} data: its rows are cut at {length:,} "
        "tokens, before their answers begin.",
        hint=f"Allow examples of {enough:,} tokens.",
        param="data.max_length",
        repair={"data": {"max_length": enough}},
    )


def _template_refusal(name: str, part: PartStats, recipe: AnyRecipe) -> Refusal:
    reason, rows = next(iter(part.refused.items()))
    others = sum(one.rows for one in part.refused.values()) - 1
    beside = f", and {others:,} more" if others else ""
    has_other = recipe.data.chat_template != "chatml"
    return Refusal(
        message=f"Row {rows.numbers[0]:,} of the {PART_NAMES[name]} data{beside} cannot be written "
        f"by this chat template: {reason}.",
        hint="Use the ChatML template." if has_other else "Leave these rows out of the data set.",
        param="data.chat_template",
        repair={"data": {"chat_template": "chatml"}} if has_other else {},
    )
