"""Findings: kept with a version, left out of the next one, and in the way of a start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.db.tables import DatasetVersion
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.runner.tasks.build_dataset import scan
from studio.services.datasets import data_quality, dataset_builds, versions
from studio.services.datasets.data_quality import FindingRef
from studio.services.datasets.pending_datasets import Upload
from studio.services.datasets.versions import RowQuery
from studio.services.queue import task_results
from studio.services.runs import runs
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.support.factories import make_recipe

Bring = Callable[..., int]

GOOD = [(f"What is {i}?", f"It is {i}.") for i in range(20)]


@pytest.fixture
def folder(settings: Settings) -> Path:
    return settings.datasets


@pytest.fixture
def bring(engine: Engine, folder: Path) -> Bring:
    def brought(pairs: list[tuple[str, str]], **columns: list[Any]) -> int:
        rows = [{"prompt": question, "completion": answer} for question, answer in pairs]
        for name, values in columns.items():
            rows = [row | {name: value} for row, value in zip(rows, values, strict=True)]
        path = folder / ".arrived"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with unit_of_work(engine) as db:
            return (
                dataset_builds.import_file(db, folder, Upload(path=path, filename="pets.jsonl")).id
                or 0
            )

    return brought


def version_of(engine: Engine, dataset_id: int, number: int = 1) -> DatasetVersion:
    with read_session(engine) as db:
        return versions.get(db, dataset_id, number)


def codes(version: DatasetVersion | None) -> list[str]:
    assert version is not None
    return [one["code"] for one in version.findings or []]


def leave_out(
    engine: Engine, folder: Path, dataset_id: int, code: str, version: int | None = None
) -> dataset_builds.BuildResult:
    return data_quality.exclude_finding(
        engine, folder, dataset_id, FindingRef(code=code, version=version), Limits()
    )


def test_version_stores_findings_of_its_rows(engine: Engine, bring: Bring) -> None:
    version = version_of(engine, bring([*GOOD, ("Ring\x07", "Yes.")]))

    assert version.findings == [
        {
            "code": "control_characters",
            "message": "Rows contain control characters or invisible characters",
            "count": 1,
            "rows": [21],
            "part": "train",
            "blocking": False,
            "twins": [],
        }
    ]


def test_finding_rows_are_excluded_by_source_row_number(
    engine: Engine, folder: Path, bring: Bring
) -> None:
    # The second row is none, so numbers among the rows are not those in the file.
    made = leave_out(
        engine,
        folder,
        bring([GOOD[0], ("", ""), ("Ring\x07", "Yes."), *GOOD[1:]]),
        "control_characters",
    ).version

    assert made is not None
    assert (made.number, made.train_rows, made.mapping["exclude"], codes(made)) == (2, 20, [3], [])


def test_excluding_finding_removes_all_affected_rows(
    engine: Engine, folder: Path, bring: Bring
) -> None:
    bells = [(f"Ring {i}\x07", f"Yes, {i}.") for i in range(50)]
    made = leave_out(engine, folder, bring([*bells, *GOOD]), "control_characters").version

    assert made is not None
    assert (made.train_rows, codes(made)) == (20, [])


@pytest.mark.parametrize(
    ("again", "code", "kept"),
    [
        ([*GOOD, *GOOD[:5]], "duplicates", 20),
        ([*GOOD, (GOOD[3][0], "Otherwise.")], "same_question", 20),
    ],
)
def test_excluding_repeated_rows_keeps_first(
    engine: Engine, folder: Path, bring: Bring, again: list[tuple[str, str]], code: str, kept: int
) -> None:
    dataset_id = bring(again)
    made = leave_out(engine, folder, dataset_id, code).version

    assert codes(version_of(engine, dataset_id)) == [code]
    assert made is not None
    assert (made.train_rows, codes(made)) == (kept, [])


def test_excluding_finding_of_outdated_version_is_rejected(
    engine: Engine, folder: Path, bring: Bring
) -> None:
    dataset_id = bring([*GOOD, ("Ring\x07", "Yes.")])
    leave_out(engine, folder, dataset_id, "control_characters", version=1)

    with pytest.raises(ConflictError) as refused:
        leave_out(engine, folder, dataset_id, "control_characters", version=1)
    assert refused.value.message == "Another version of this dataset is now current."
    with pytest.raises(NotFoundError):
        leave_out(engine, folder, dataset_id, "control_characters")


def test_imbalanced_class_rows_cannot_be_excluded(
    engine: Engine, folder: Path, bring: Bring
) -> None:
    uneven = [(f"Text {i}", "no" if i else "yes") for i in range(50)]
    with pytest.raises(InvalidError, match="cannot be excluded"):
        leave_out(engine, folder, bring(uneven), "uneven_classes")


def test_finding_rows_are_loaded_by_page(engine: Engine, folder: Path, bring: Bring) -> None:
    version = version_of(engine, bring([*GOOD, *GOOD[:5]]))
    which = RowQuery(finding="duplicates", after=21)
    page = versions.load_rows(folder, version, which, limit=2)

    assert ([one.number for one in page.rows], page.next_after) == ([22, 23], 23)
    seen = data_quality.locate_spans(folder, version, which, page)
    assert {number: one.reason for number, one in seen.items()} == {
        22: "Identical to row 2.",
        23: "Identical to row 3.",
    }


def test_blocking_finding_prevents_run_with_hint(engine: Engine, bring: Bring) -> None:
    dataset_id = bring(GOOD[:1])
    with unit_of_work(engine) as db, pytest.raises(InvalidError) as refused:
        runs.check(db, make_recipe(dataset="pets"))

    assert (refused.value.param, refused.value.message, refused.value.hint) == (
        "dataset",
        "Only one row can be trained on; training and validation need one each.",
        f"Open dataset {dataset_id} and edit its mapping, or choose another dataset.",
    )


def test_non_blocking_finding_allows_run_to_start(engine: Engine, bring: Bring) -> None:
    bring([*GOOD, *GOOD])
    with unit_of_work(engine) as db:
        recipe = make_recipe(dataset="pets")
        runs.check(db, recipe)
        noted = data_quality.build_notice(db, recipe)

    assert noted is not None
    assert noted.sentence == "1 issue in this dataset"


def test_rows_without_stored_findings_are_scanned_by_task(
    engine: Engine, settings: Settings, bring: Bring
) -> None:
    dataset_id = bring([*GOOD, *GOOD[:1]])
    with unit_of_work(engine) as db:
        old = versions.get(db, dataset_id, 1)
        old.findings = None
    (settings.datasets / str(dataset_id) / "1" / "findings.json").unlink()
    with unit_of_work(engine) as db:
        chore = data_quality.enqueue_scan(db, settings.datasets, versions.get(db, dataset_id, 1))

    told: list[float | None] = []
    result = scan(
        tasks.task_dir(settings.tasks, chore),
        chore.params,
        lambda _phase, share: told.append(share),
    )
    with unit_of_work(engine) as db:
        found = tasks.get(db, chore.id or 0)
        with task_results.notify_on_end(db, found):
            found.result = json.loads(json.dumps(result))
            tasks.close_work(found, TaskStatus.SUCCEEDED)

    assert (codes(version_of(engine, dataset_id)), told[-1]) == (["duplicates"], 1)


@pytest.mark.parametrize(
    ("split", "finding", "can"),
    [
        ("share", {"code": "misread", "part": "validation", "blocking": False}, True),
        ("dataset", {"code": "misread", "part": "validation", "blocking": False}, False),
        ("dataset", {"code": "duplicates", "part": "validation", "blocking": False}, True),
        ("share", {"code": "no_good_answers", "part": "train", "blocking": True}, False),
        ("share", {"code": "one_answer", "part": "train", "blocking": False}, False),
    ],
)
def test_can_exclude_depends_on_split_and_finding(
    split: str, finding: dict[str, Any], *, can: bool
) -> None:
    reading_of = {"shape": "text", "roles": {"text": ["text"]}, "split": {"kind": split}}
    assert data_quality.can_exclude(Mapping.model_validate(reading_of), finding) is can
