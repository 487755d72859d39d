"""Data sets: brought whole or not at all, found by name, kept while a run needs them."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import unit_of_work
from studio.db.tables import Dataset, DatasetVersion
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.rows import paging
from studio.services.datasets import dataset_builds, datasets, starter_dataset, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.datasets.versions import RowQuery
from studio.services.runs import run_commands
from studio.settings import Settings
from tests.support.factories import make_run, make_running

ROW = '{"prompt": "a", "completion": "b"}\n'


@pytest.fixture
def folder(settings: Settings) -> Path:
    return settings.datasets


def upload(
    folder: Path, content: str = ROW, filename: str = "pets.jsonl", name: str = ""
) -> Upload:
    path = folder / ".arrived"
    path.write_text(content, encoding="utf-8")
    return Upload(path=path, filename=filename, name=name)


def kept(folder: Path) -> list[str]:
    """Return what is in the folder besides the starter, which every test has."""
    return sorted(path.name for path in folder.iterdir() if path.name not in {"1", ".arrived"})


def current(db: Session, dataset: Dataset) -> DatasetVersion:
    version = versions.current(db, dataset)
    assert version is not None
    return version


def test_upload_is_kept_with_converted_rows(db: Session, folder: Path) -> None:
    dataset = dataset_builds.import_file(db, folder, upload(folder))

    version = current(db, dataset)
    train, validation = versions.row_files(folder, version)
    assert json.loads(train.read_text()) == {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    }
    assert validation is None
    assert (folder / str(dataset.id) / "original.jsonl").read_text() == ROW
    assert (dataset.name, version.number, version.kind) == ("pets", 1, "conversation")
    assert (version.mapping["shape"], version.train_rows) == ("prompt_completion", 1)
    assert version.mapping["roles"] == {"prompt": ["prompt"], "completion": ["completion"]}
    assert dataset.sha256 == hashlib.sha256(ROW.encode()).hexdigest()


def test_given_upload_hash_is_used(db: Session, folder: Path) -> None:
    brought = replace(upload(folder), sha256="f" * 64, is_draft=True)

    assert dataset_builds.import_file(db, folder, brought).sha256 == "f" * 64


def test_validation_file_rows_are_kept_separately(db: Session, folder: Path) -> None:
    extra = folder / ".validation"
    extra.write_text("question,answer\nc,d\ne,\n", encoding="utf-8")
    with_validation = Upload(
        path=upload(folder).path,
        filename="pets.jsonl",
        validation=extra,
        validation_filename="held_out.csv",
    )

    dataset = dataset_builds.import_file(db, folder, with_validation)

    version = current(db, dataset)
    page = versions.load_rows(folder, version, RowQuery(part="validation"))
    assert [one.row["messages"][0]["content"] for one in page.rows] == ["c"]
    assert [(one["split"], one["code"], one["rows"]) for one in version.problems] == [
        ("validation", "missing_answer", [3])
    ]


def test_validation_file_error_names_its_field(db: Session, folder: Path) -> None:
    extra = folder / ".validation"
    extra.touch()
    with_validation = Upload(
        path=upload(folder).path,
        filename="pets.jsonl",
        validation=extra,
        validation_filename="held_out.csv",
    )

    with pytest.raises(InvalidError) as refused:
        dataset_builds.import_file(db, folder, with_validation)

    assert (refused.value.message, refused.value.param) == (
        "The file is empty.",
        "validation_file",
    )


def test_row_problems_are_stored_with_dataset(db: Session, folder: Path) -> None:
    dataset = dataset_builds.import_file(db, folder, upload(folder, ROW + '{"prompt": "a"}\n'))

    assert current(db, dataset).problems == [
        {
            "code": "missing_answer",
            "message": "The answer is missing or empty.",
            "count": 1,
            "rows": [2],
            "blocking": False,
            "split": "train",
            "places": [],
        }
    ]


def test_duplicate_dataset_name_is_rejected_and_leaves_no_files(db: Session, folder: Path) -> None:
    with pytest.raises(ConflictError) as refused:
        dataset_builds.import_file(db, folder, upload(folder, name="starter"))

    assert (refused.value.param, refused.value.hint) == (
        "name",
        "Choose another name, such as starter 2.",
    )
    assert kept(folder) == []


def test_rejected_upload_leaves_no_dataset_or_files(db: Session, folder: Path) -> None:
    with pytest.raises(InvalidError):
        dataset_builds.import_file(db, folder, upload(folder, '{"a": 1}\n'))

    assert kept(folder) == []
    assert [dataset.name for dataset in datasets.newest(db)] == ["starter"]


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("../../etc/passwd.jsonl", "passwd"),
        ("C:\\data\\pets.jsonl", "pets"),
        ("a\x00b\u202e.jsonl", "a\ufffdb\ufffd"),
        ("x" * 5000 + ".jsonl", "x" * 194),
    ],
)
def test_file_name_sets_dataset_name_but_not_folder(
    db: Session, folder: Path, filename: str, name: str
) -> None:
    dataset = dataset_builds.import_file(db, folder, upload(folder, filename=filename))

    assert dataset.name == name
    assert kept(folder) == [str(dataset.id)]


@pytest.mark.parametrize("name", ["  ", "two\nlines", "a\x00", "\u202eback", "x" * 201])
def test_invalid_dataset_name_is_rejected(db: Session, name: str) -> None:
    with pytest.raises(InvalidError) as refused:
        datasets.rename(db, 1, name)

    assert refused.value.param == "name"


@pytest.mark.parametrize("name", ["starter", "1"])
def test_dataset_is_found_by_name_or_id(db: Session, name: str) -> None:
    assert datasets.require(db, name).id == 1


def test_dataset_name_takes_precedence_over_id(db: Session, folder: Path) -> None:
    dataset = dataset_builds.import_file(db, folder, upload(folder, name="1"))

    assert datasets.require(db, "1").id == dataset.id


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startr", "Did you mean starter?"),
        ("99", "Did you mean starter?"),
        ("9" * 100, "Did you mean starter?"),
    ],
)
def test_unknown_dataset_error_suggests_nearest_name(db: Session, name: str, hint: str) -> None:
    with pytest.raises(InvalidError) as refused:
        datasets.require(db, name)

    assert (refused.value.param, refused.value.hint) == ("dataset", hint)


def test_rows_are_loaded_by_page(db: Session, folder: Path) -> None:
    starter = versions.get(db, 1, 1)

    first = versions.load_rows(folder, starter, limit=30)
    last = versions.load_rows(folder, starter, RowQuery(after=30), limit=30)

    assert ([row.number for row in first.rows], first.next_after) == (list(range(1, 31)), 30)
    assert ([row.number for row in last.rows], last.next_after) == (list(range(31, 41)), None)


def test_page_of_long_rows_ends_early(db: Session, folder: Path) -> None:
    long = json.dumps({"prompt": "a", "completion": "b" * (paging.PAGE_BYTES // 2)}) + "\n"
    dataset = dataset_builds.import_file(db, folder, upload(folder, long * 3))

    page = versions.load_rows(folder, current(db, dataset))

    assert ([row.number for row in page.rows], page.next_after) == ([1], 1)


def test_deleting_dataset_deletes_its_files(engine: Engine, folder: Path) -> None:
    with unit_of_work(engine) as db:
        dataset = dataset_builds.import_file(db, folder, upload(folder))
    with unit_of_work(engine) as db:
        datasets.delete(db, folder, dataset.id or 0)

    with unit_of_work(engine) as db, pytest.raises(NotFoundError):
        datasets.get(db, dataset.id or 0)
    assert kept(folder) == []


def test_dataset_is_not_deleted_while_run_is_queued(db: Session, folder: Path) -> None:
    make_run(db)

    with pytest.raises(ConflictError) as refused:
        datasets.delete(db, folder, 1)

    assert refused.value.message == "starter is used by run 1, first try, which is queued."


def test_dataset_referenced_by_id_is_not_deleted_during_training(db: Session, folder: Path) -> None:
    make_running(db, dataset="1")

    with pytest.raises(ConflictError):
        datasets.delete(db, folder, 1)


def test_dataset_can_be_deleted_after_its_runs_end(db: Session, folder: Path) -> None:
    run_commands.cancel(db, make_run(db).id or 0)

    datasets.delete(db, folder, 1)

    assert datasets.newest(db) == []


def test_queued_run_finds_renamed_dataset(db: Session) -> None:
    run = make_run(db)

    datasets.rename(db, 1, "other")

    assert versions.find_for_run(db, run) is versions.get(db, 1, 1)


def test_renamed_dataset_is_found_by_new_name(db: Session) -> None:
    datasets.rename(db, 1, "  other ")

    assert datasets.require(db, "other").id == 1


def test_starter_dataset_is_created_once(db: Session, folder: Path) -> None:
    db.delete(datasets.get(db, 1))
    db.flush()

    made = starter_dataset.get_or_create(db, folder)

    assert starter_dataset.get_or_create(db, folder) is made
    version = current(db, made)
    assert (made.name, version.mapping["shape"]) == ("starter", "messages")
    assert version.train_rows > version.validation_rows > 0
    page = versions.load_rows(folder, version, RowQuery(part="validation"), limit=1)
    assert page.rows[0].row["messages"][-1]["role"] == "assistant"


def test_cleanup_removes_leftovers_of_killed_uploads(db: Session, folder: Path) -> None:
    (folder / ".new-abc").mkdir()
    (folder / "99").mkdir()
    (folder / "1" / ".new-abc").mkdir()
    (folder / "1" / "2").mkdir()

    datasets.cleanup(db, folder)

    assert (kept(folder), [path.name for path in (folder / "1").iterdir()]) == ([], ["1"])


def test_newest_datasets_come_first(db: Session, folder: Path) -> None:
    dataset_builds.import_file(db, folder, upload(folder))
    rows = datasets.newest(db)

    assert [dataset.name for dataset in rows] == ["pets", "starter"]
    assert [one.name for one in datasets.newest(db, before=rows[0].id)] == ["starter"]
