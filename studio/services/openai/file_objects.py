"""Datasets as files of the OpenAI API: uploaded, described and downloaded.

A file is a dataset: `file-12` is dataset 12, whatever its source. A run's metrics are a file, too:
`file-results-7` is a table of those of run 7.
"""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from sqlmodel import Session, col, select

from studio.db.states import DatasetStatus, RunStatus
from studio.db.tables import Dataset, DatasetVersion, Metric, OpenAIFile, Run
from studio.errors import InvalidError, NotFoundError
from studio.methods import METHODS, METRICS
from studio.metrics import NEXT_TOKEN
from studio.services.datasets import dataset_builds, datasets, pending_datasets, versions
from studio.services.datasets.pending_datasets import Upload

METRIC_NAMES = {key: spec.openai for key, spec in METRICS.items() if spec.openai}
"""OpenAI's names of our metrics."""

_RESULT_COLUMNS = {
    key: METRICS[key].openai_column or name
    for key, name in sorted(
        METRIC_NAMES.items(), key=lambda pair: METRICS[pair[0]].source != "train"
    )
}
"""OpenAI's names in the results file."""

_ID = re.compile(r"file-(\d{1,18})")
_RESULTS = re.compile(r"file-results-(\d{1,18})")


def create(db: Session, folder: Path, upload: Upload, *, is_again: bool = False) -> Dataset:
    """Store a file and import its rows. A file without usable rows becomes a draft with the error.

    `is_again` marks a retry of a request whose response may have been lost.

    Raises:
        InvalidError: The file does not contain rows.

    """
    existing = _find_same(db, upload) if is_again else None
    if existing is not None:
        return existing
    try:
        return dataset_builds.import_file(db, folder, upload)
    except InvalidError as error:
        problem = f"{error.message} {error.hint}".strip()
    dataset = pending_datasets.create(db, folder, upload)
    db.add(OpenAIFile(dataset_id=dataset.id or 0, problem=problem))
    return dataset


def get(db: Session, file_id: str) -> Dataset:
    """Return the dataset of a file.

    Raises:
        NotFoundError: There is none.

    """
    match = _ID.fullmatch(file_id)
    dataset = db.get(Dataset, int(match[1])) if match else None
    if dataset is None:
        raise NotFoundError(f"No such File object: {file_id[:100]}.", param="id")
    return dataset


def get_results_run(db: Session, file_id: str) -> Run | None:
    """Return the run whose results a file contains, or None for other files.

    Raises:
        NotFoundError: That run is gone, or has no results yet.

    """
    match = _RESULTS.fullmatch(file_id)
    if match is None:
        return None
    run = db.get(Run, int(match[1]))
    if run is None or run.status is not RunStatus.SUCCEEDED:
        raise NotFoundError(f"No such File object: {file_id[:100]}.", param="id")
    return run


def status(db: Session, dataset: Dataset) -> tuple[str, str | None]:
    """Return OpenAI's status of a file, and what is wrong with its rows."""
    if dataset.status is DatasetStatus.BUILDING:
        return "uploaded", None
    version = versions.current(db, dataset)
    if version is not None:
        blocking = _describe_problems(version, only_blocking=True)
        return (
            ("error", blocking) if blocking else ("processed", _describe_problems(version) or None)
        )
    file_row = db.get(OpenAIFile, dataset.id)
    task = dataset_builds.latest_task(db, dataset.id or 0)
    problem = (
        file_row.problem if file_row else f"{task.error_message} {task.error_hint}" if task else ""
    )
    return "error", problem.strip() or "The mapping of this file has not been confirmed yet."


def results_csv(db: Session, run: Run) -> bytes:
    """Return a run's losses, accuracies and rewards as CSV, one line per step."""
    own = {spec.key for spec in (*NEXT_TOKEN.own, *METHODS[run.recipe.method].metrics.own)}
    columns = {key: name for key, name in _RESULT_COLUMNS.items() if key in own}
    query = select(Metric).where(Metric.run_id == run.id, col(Metric.key).in_(columns))
    steps: dict[int, dict[str, float | None]] = {}
    for metric in db.exec(query.order_by(col(Metric.step))):
        steps.setdefault(metric.step, {})[columns[metric.key]] = metric.value
    text = io.StringIO()
    table = csv.DictWriter(text, ["step", *columns.values()], lineterminator="\n")
    table.writeheader()
    table.writerows({"step": step, **values} for step, values in steps.items())
    return text.getvalue().encode()


def list_runs_with_results(db: Session) -> Sequence[Run]:
    """Return the runs that have results, newest first."""
    query = select(Run).where(Run.status == RunStatus.SUCCEEDED, col(Run.deleted_at).is_(None))
    return db.exec(query.order_by(col(Run.id).desc())).all()


def content_path(db: Session, folder: Path, dataset: Dataset) -> Path:
    """Return the file as it was uploaded; for built-in datasets, the rows.

    Raises:
        NotFoundError: The file is gone.

    """
    try:
        return pending_datasets.original_source(folder, dataset).path
    except InvalidError as error:
        version = versions.current(db, dataset)
        if version is None:
            raise NotFoundError("This file has no content.", param="id") from error
        return versions.row_files(folder, version)[0]


def _find_same(db: Session, upload: Upload) -> Dataset | None:
    query = select(Dataset).where(
        Dataset.sha256 == upload.sha256,
        Dataset.filename == datasets.clean_filename(upload.filename),
    )
    return db.exec(query.order_by(col(Dataset.id).desc()).limit(1)).first()


def _describe_problems(version: DatasetVersion, *, only_blocking: bool = False) -> str:
    problems = [*version.problems, *(version.findings or [])]
    selected = [problem for problem in problems if problem["blocking"] or not only_blocking]
    return " ".join(_describe_problem(problem) for problem in selected)


def _describe_problem(problem: dict[str, object]) -> str:
    rows = problem.get("rows")
    where = ""
    if isinstance(rows, list) and rows:
        where = f" ({'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows))})"
    return f"{str(problem['message']).rstrip('.')}: {problem['count']}{where}."
