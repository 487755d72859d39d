"""Findings in the rows of a version: list them, exclude their rows, and block a start."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.detection.row_shapes import KIND_NAMES
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.intake.quality import finding_rows
from studio.intake.quality import row_checks as spotted
from studio.intake.quality.answer_facts import AnswerFacts
from studio.intake.rows.paging import Page
from studio.methods import METHODS, AnyRecipe, readers
from studio.methods.base import Method
from studio.recipe.base import Outputs
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
"""Findings that keep the first of each group of rows, and their mapping option."""

_IMBALANCE_CODES = {
    *("uneven_classes", "one_answer", "one_sided", "longer_is_better", "unmeasured_classes"),
    "rare_labels",
}

_GIVEN_BY_SHAPE: dict[str, Outputs] = {"classification": "label", "regression": "number"}
"""What the answers of some shapes are: a model that gives these is made for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRef:
    """The finding whose rows to exclude."""

    code: str
    part: Part = "train"
    version: int | None = None
    """The version it was found in, if known: it must still be the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataNotice:
    """A note on the dataset that a recipe names."""

    sentence: str
    link: str


def enqueue_scan(db: Session, folder: Path, version: DatasetVersion) -> Task:
    """Queue a scan of an older version's rows, or return the task that scans them already."""
    train, _validation = versions.row_files(folder, version)
    params = {"rows": str(train.parent), "version": version.id}
    return tasks.enqueue(db, KIND, _task_subject(version), params)


def latest_scan(db: Session, version: DatasetVersion) -> Task | None:
    """Return the newest task that scans, or has scanned, a version."""
    return tasks.latest(db, KIND, _task_subject(version))


def on_task_end(db: Session, task: Task, result: dict[str, Any]) -> None:
    version = db.get(DatasetVersion, task.params["version"])
    if result and version is not None:
        version.findings = result["findings"]
        version.answers = result.get("answers")


def can_exclude(mapping: Mapping, finding: dict[str, Any]) -> bool:
    """Return whether another mapping of the file can exclude the rows of a finding.

    It cannot for rows of a separate validation file, which the mapping does not read; for
    findings that make all rows useless; and for imbalance, which it cannot fix.
    """
    if finding["code"] in DUPLICATE_CODES:
        return True
    is_here = finding["part"] == "train" or mapping.split.kind != "dataset"
    return is_here and not finding["blocking"] and finding["code"] not in _IMBALANCE_CODES


def exclude_rows(
    engine: Engine, folder: Path, dataset_id: int, numbers: list[int], limits: Limits
) -> BuildResult:
    """Read the file again without some of its rows, given by their numbers in the file.

    Raises:
        ConflictError: The file has not been read yet, or is being read.
        InvalidError: No rows would be left.

    """
    with read_session(engine) as db:
        mapping = versions.current_mapping(db, dataset_id)
    return dataset_builds.rebuild(
        engine, folder, dataset_id, _mapping_excluding(mapping, numbers), limits
    )


def exclude_finding(
    engine: Engine, folder: Path, dataset_id: int, finding_ref: FindingRef, limits: Limits
) -> BuildResult:
    """Read the file again without the rows of a finding.

    Raises:
        ConflictError: Another version is current, or this one has not been scanned yet.
        InvalidError: These rows cannot be excluded, or no rows would be left.
        NotFoundError: The version has no such finding.

    """
    with read_session(engine) as db:
        version = versions.current(db, datasets.get(db, dataset_id))
    if version is None or finding_ref.version not in {None, version.number}:
        raise ConflictError(
            "Another version of this dataset is now current.",
            hint="Check the findings of that version.",
        )
    mapping = Mapping.model_validate(version.mapping)
    reduced_mapping = _mapping_without(folder, version, mapping, finding_ref)
    return dataset_builds.rebuild(engine, folder, dataset_id, reduced_mapping, limits)


def get(version: DatasetVersion, code: str, part: Part) -> dict[str, Any]:
    """Return one finding of a version.

    Raises:
        ConflictError: Its rows have not been scanned yet.
        NotFoundError: It has no such finding.

    """
    if version.findings is None:
        raise ConflictError("These rows have not been scanned yet.", hint="Scan them first.")
    for finding in version.findings:
        if (finding["code"], finding["part"]) == (code, part):
            return finding
    raise NotFoundError(f"Version {version.number} has no such finding.")


def locate_spans(
    folder: Path, version: DatasetVersion, query: RowQuery, page: Page
) -> dict[int, spotted.FindingInRow]:
    """Return where the requested finding is in each row of a page, by row number."""
    if not query.finding:
        return {}
    train, _validation = versions.row_files(folder, version)
    twins = finding_rows.rows_with_finding(train.parent, query.finding, query.part)
    return {
        page_row.number: spotted.locate_finding(
            query.finding, page_row.row, twins.get(page_row.number)
        )
        for page_row in page.rows
    }


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return what keeps a recipe from starting: rows its method cannot read, and findings."""
    version = _find_version(db, recipe)
    findings = (version.findings or []) if version else []
    return [
        *_unreadable_rows(version, recipe),
        *(
            Refusal(
                message=f"{finding['message']}.",
                hint=f"Open dataset {version.dataset_id} and edit its mapping, or "
                "choose another dataset.",
                param="dataset",
                link=_problems_link(version),
            )
            for finding in findings
            if version and finding["blocking"]
        ),
    ]


def _unreadable_rows(version: DatasetVersion | None, recipe: AnyRecipe) -> Iterator[Refusal]:
    method = METHODS[recipe.method]
    if version is None:
        return
    if version.kind in method.trains_on:
        yield from _unlearnable_answers(version, method)
        return
    fitting = " or ".join(other.purpose for other in fitting_methods(version))
    hint = f"Choose another dataset, or: {fitting}." if fitting else "Choose another dataset."
    yield Refusal(
        message=f"{method.title} cannot train on {KIND_NAMES[version.kind]}.",
        hint=hint,
        param="dataset",
        link=f"/datasets/{version.dataset_id}",
    )


def _unlearnable_answers(version: DatasetVersion, method: Method) -> Iterator[Refusal]:
    if problem := answer_problem(version, method):
        yield Refusal(
            message=problem,
            hint="Check the column mapping, or choose another dataset or method.",
            param="dataset",
            link=f"/datasets/{version.dataset_id}",
        )


def answer_problem(version: DatasetVersion, method: Method) -> str:
    """Return why a method cannot learn the answers of a version, or "" as far as is known."""
    if version.answers is None or version.kind not in {"conversation", "tokens"}:
        return ""
    return method.answer_problem(AnswerFacts(**version.answers))


def fits(version: DatasetVersion, method: Method) -> bool:
    """Whether a method can train on a version: on rows of its kind, and on its answers."""
    return version.kind in method.trains_on and not answer_problem(version, method)


def sort_methods(methods: Iterable[Method], shape: str) -> list[Method]:
    """Put those first whose models give what the answers of a shape are."""
    given = _GIVEN_BY_SHAPE.get(shape, "")
    return sorted(methods, key=lambda method: method.recipe.outputs != given)


def fitting_methods(version: DatasetVersion) -> list[Method]:
    """Return the methods that can train on a version, the most suitable first."""
    fitting = (method for method in readers(version.kind) if fits(version, method))
    return sort_methods(fitting, version.mapping.get("shape", ""))


def build_notice(db: Session, recipe: AnyRecipe) -> DataNotice | None:
    """Return a note on findings in a recipe's data that do not keep it from starting."""
    version = _find_version(db, recipe)
    count = sum(not finding["blocking"] for finding in version.findings or []) if version else 0
    if version is None or not count:
        return None
    sentence = f"{count} issues in this dataset"
    if count == 1:
        sentence = "1 issue in this dataset"
    return DataNotice(sentence=sentence, link=_problems_link(version))


def _mapping_without(
    folder: Path, version: DatasetVersion, mapping: Mapping, finding_ref: FindingRef
) -> Mapping:
    finding = get(version, finding_ref.code, finding_ref.part)
    if not can_exclude(mapping, finding):
        raise InvalidError(
            "These rows cannot be excluded here.",
            hint="Fix the file and upload it again.",
            param="finding",
        )
    if strategy := DUPLICATE_CODES.get(finding_ref.code):
        return mapping.model_copy(update={"deduplicate": strategy})
    train, _validation = versions.row_files(folder, version)
    rows = finding_rows.rows_with_finding(train.parent, finding_ref.code, finding_ref.part)
    numbers = finding_rows.original_row_numbers(train.parent, finding_ref.part, rows)
    if not numbers:
        raise InvalidError(
            "The row numbers of this finding in the file are not recorded.",
            hint="Edit the mapping and save the dataset to read the file again.",
            param="finding",
        )
    return _mapping_excluding(mapping, numbers)


def _mapping_excluding(mapping: Mapping, numbers: list[int]) -> Mapping:
    return mapping.model_copy(update={"exclude": sorted({*mapping.exclude, *numbers})})


def _find_version(db: Session, recipe: AnyRecipe) -> DatasetVersion | None:
    try:
        return versions.require(db, recipe.dataset)
    except InvalidError:  # The dataset's own field shows this error.
        return None


def _problems_link(version: DatasetVersion | None) -> str:
    return f"/datasets/{version.dataset_id}#problems" if version else ""


def _task_subject(version: DatasetVersion) -> str:
    return f"version:{version.id}"
