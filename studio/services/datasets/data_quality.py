"""What is suspicious in the rows of a version: told, left out, and in the way of a start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.intake.quality import finding_spans as spotted
from studio.intake.quality import finding_store
from studio.intake.rows.paging import Page
from studio.methods import AnyRecipe
from studio.services.datasets import dataset_builds, datasets, versions
from studio.services.datasets.dataset_builds import BuildResult
from studio.services.datasets.versions import Part, RowQuery
from studio.services.precision.incompatibilities import Refusal
from studio.services.tasks import tasks

KIND = "look"

DUPLICATE_CODES: dict[str, Literal["exact", "question"]] = {
    "duplicates": "exact",
    "same_question": "question",
}
"""Findings of which the first rows are kept, and how a mapping says so."""

_IMBALANCE_CODES = {"uneven_classes", "one_answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRef:
    """Which finding's rows are to be left out."""

    code: str
    part: Part = "train"
    version: int | None = None
    """The version it was seen in, where that is known: it must still be the one in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataNotice:
    """What to say of a data set beside a recipe that names it."""

    sentence: str
    link: str


def enqueue_scan(db: Session, folder: Path, version: DatasetVersion) -> Task:
    """Have the rows of an older version looked through; a chore that does so already is it."""
    train, _validation = versions.row_files(folder, version)
    params = {"rows": str(train.parent), "version": version.id}
    return tasks.enqueue(db, KIND, _task_subject(version), params)


def latest_scan(db: Session, version: DatasetVersion) -> Task | None:
    """Return the newest chore that looks through a version, or has done so."""
    return next(
        (one for one in tasks.list_for_subject(db, _task_subject(version)) if one.kind == KIND),
        None,
    )


def on_task_end(db: Session, chore: Task, result: dict[str, Any]) -> None:
    version = db.get(DatasetVersion, chore.params["version"])
    if result and version is not None:
        version.findings = result["findings"]


def can_exclude(mapping: Mapping, finding: dict[str, Any]) -> bool:
    """Whether reading the file in another way leaves out what was found.

    Rows of a second file are no rows of the one that is read, those that make all others useless
    are all there is, and classes become no more even by it.
    """
    if finding["code"] in DUPLICATE_CODES:
        return True
    is_here = finding["part"] == "train" or mapping.split.kind != "dataset"
    return is_here and not finding["blocking"] and finding["code"] not in _IMBALANCE_CODES


def exclude_rows(
    engine: Engine, folder: Path, dataset_id: int, numbers: list[int], limits: Limits
) -> BuildResult:
    """Read the file again without some of its rows, by their numbers in the file.

    Raises:
        ConflictError: it has not been read yet, or is being read.
        InvalidError: nothing would be left of it.

    """
    with read_session(engine) as db:
        mapping = versions.current_mapping(db, dataset_id)
    return dataset_builds.rebuild(
        engine, folder, dataset_id, _mapping_excluding(mapping, numbers), limits
    )


def exclude_finding(
    engine: Engine, folder: Path, dataset_id: int, wanted: FindingRef, limits: Limits
) -> BuildResult:
    """Read the file again without the rows of a finding.

    Raises:
        ConflictError: another version is in use by now, or nobody has looked through this one.
        InvalidError: these rows cannot be left out, or nothing would be left.
        NotFoundError: there is no such finding.

    """
    with read_session(engine) as db:
        version = versions.current(db, datasets.get(db, dataset_id))
    if version is None or wanted.version not in {None, version.number}:
        raise ConflictError(
            "Another version of this data set is in use by now.",
            hint="Look at what was found in that one.",
        )
    mapping = Mapping.model_validate(version.mapping)
    less = _mapping_without(folder, version, mapping, wanted)
    return dataset_builds.rebuild(engine, folder, dataset_id, less, limits)


def get(version: DatasetVersion, code: str, part: Part) -> dict[str, Any]:
    """Return one finding of a version.

    Raises:
        ConflictError: nobody has looked through its rows yet.
        NotFoundError: there is no such finding.

    """
    if version.findings is None:
        raise ConflictError(
            "Nobody has looked through these rows yet.", hint="Have them looked through first."
        )
    for one in version.findings:
        if (one["code"], one["part"]) == (code, part):
            return one
    raise NotFoundError(f"Nothing like that was found in version {version.number}.")


def locate_spans(
    folder: Path, version: DatasetVersion, which: RowQuery, page: Page
) -> dict[int, spotted.FindingInRow]:
    """Return where in the rows of a page the finding that was asked for is, by their numbers."""
    if not which.finding:
        return {}
    train, _validation = versions.row_files(folder, version)
    twins = finding_store.rows_with_finding(train.parent, which.finding, which.part)
    return {
        one.number: spotted.locate_finding(which.finding, one.row, twins.get(one.number))
        for one in page.rows
    }


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return what of the data keeps a recipe from starting."""
    version = _find_version(db, recipe)
    found = (version.findings or []) if version else []
    return [
        Refusal(
            message=f"{one['message']}.",
            hint=f"Look at data set {version.dataset_id} and read its file in another way, or "
            "choose another one.",
            param="dataset",
            link=_problems_link(version),
        )
        for one in found
        if version and one["blocking"]
    ]


def build_notice(db: Session, recipe: AnyRecipe) -> DataNotice | None:
    """Return what to look at in a recipe's data that does not keep it from starting."""
    version = _find_version(db, recipe)
    count = sum(not one["blocking"] for one in version.findings or []) if version else 0
    if version is None or not count:
        return None
    told = f"{count} things to look at in this data set"
    if count == 1:
        told = "1 thing to look at in this data set"
    return DataNotice(sentence=told, link=_problems_link(version))


def _mapping_without(
    folder: Path, version: DatasetVersion, mapping: Mapping, wanted: FindingRef
) -> Mapping:
    finding = get(version, wanted.code, wanted.part)
    if not can_exclude(mapping, finding):
        raise InvalidError(
            "These rows cannot be left out from here.",
            hint="Change the file they come from, and bring it again.",
            param="finding",
        )
    if how := DUPLICATE_CODES.get(wanted.code):
        return mapping.model_copy(update={"deduplicate": how})
    train, _validation = versions.row_files(folder, version)
    rows = finding_store.rows_with_finding(train.parent, wanted.code, wanted.part)
    numbers = finding_store.original_row_numbers(train.parent, wanted.part, rows)
    if not numbers:
        raise InvalidError(
            "It is not known which rows of the file these are.",
            hint="Read the file anew: change how it is read, and use it.",
            param="finding",
        )
    return _mapping_excluding(mapping, numbers)


def _mapping_excluding(mapping: Mapping, numbers: list[int]) -> Mapping:
    return mapping.model_copy(update={"exclude": sorted({*mapping.exclude, *numbers})})


def _find_version(db: Session, recipe: AnyRecipe) -> DatasetVersion | None:
    try:
        return versions.require(db, recipe.dataset)
    except InvalidError:  # That is told beside its own field.
        return None


def _problems_link(version: DatasetVersion | None) -> str:
    return f"/datasets/{version.dataset_id}#problems" if version else ""


def _task_subject(version: DatasetVersion) -> str:
    return f"version:{version.id}"
