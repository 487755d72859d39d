"""Versions: every reading of a file beside the others, and runs that keep the one they used."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session

from studio.db.session import read_session, unit_of_work
from studio.db.states import DatasetStatus
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services import experiments
from studio.services.datasets import dataset_builds, datasets, pending_datasets, versions
from studio.services.datasets.pending_datasets import Upload
from studio.services.datasets.versions import RowQuery
from studio.services.runs import run_commands, runs
from studio.settings import Settings
from studio.worker.processes import run_dir_setup
from tests.support.factories import make_recipe

ROWS = [
    {"question": f"What is {i}?", "answer": f"{i}.", "topic": "odd" if i % 2 else "even"}
    for i in range(20)
]


@pytest.fixture
def folder(settings: Settings) -> Path:
    return settings.datasets


def upload(folder: Path, **more: Any) -> Upload:  # noqa: ANN401 -- any field of an upload
    path = folder / ".arrived"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return Upload(path=path, filename="pets.jsonl", **more)


@pytest.fixture
def pets(engine: Engine, folder: Path) -> int:
    """Add a dataset of twenty rows, with one version. Return its id."""
    with unit_of_work(engine) as db:
        return dataset_builds.import_file(db, folder, upload(folder)).id or 0


def mapping(**changes: Any) -> Mapping:  # noqa: ANN401 -- any field of a mapping
    roles = {"prompt": ["question"], "completion": ["answer"]}
    return Mapping.model_validate({"shape": "prompt_completion", "roles": roles} | changes)


def again(
    engine: Engine,
    folder: Path,
    dataset_id: int,
    **changes: Any,  # noqa: ANN401 -- any field of a mapping
) -> dataset_builds.BuildResult:
    return dataset_builds.rebuild(engine, folder, dataset_id, mapping(**changes), Limits())


def current(db: Session, dataset_id: int) -> int | None:
    return datasets.get(db, dataset_id).version


def test_rebuild_creates_and_activates_next_version(
    engine: Engine, folder: Path, pets: int
) -> None:
    made = again(engine, folder, pets, system="Be brief.")

    assert made.version is not None
    with read_session(engine) as db:
        assert (made.is_new, current(db, pets)) == (True, 2)
        assert [one.number for one in versions.list_versions(db, pets)] == [2, 1]
        first = versions.load_rows(folder, made.version, limit=1).rows[0].row
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}


def test_rebuild_with_identical_rows_reuses_version(
    engine: Engine, folder: Path, pets: int
) -> None:
    again(engine, folder, pets, system="Be brief.")

    made = again(engine, folder, pets, joiner=" ")

    with read_session(engine) as db:
        assert made.version is not None
        assert (made.is_new, made.version.number, current(db, pets)) == (False, 1, 1)
        assert len(versions.list_versions(db, pets)) == 2
    assert sorted(path.name for path in (folder / str(pets)).iterdir()) == [
        "1",
        "2",
        "original.jsonl",
    ]


def test_rejected_rebuild_changes_nothing(engine: Engine, folder: Path, pets: int) -> None:
    with pytest.raises(InvalidError) as refused:
        again(engine, folder, pets, roles={"prompt": ["gone"], "completion": ["answer"]})

    with read_session(engine) as db:
        assert (refused.value.param, current(db, pets)) == ("roles.prompt", 1)
    assert not list((folder / str(pets)).glob(".new*"))


def test_run_keeps_version_it_was_submitted_with(
    engine: Engine, settings: Settings, pets: int
) -> None:
    with unit_of_work(engine) as db:
        run = runs.submit(db, experiments.create(db, "try", make_recipe(dataset="pets")))
    again(engine, settings.datasets, pets, exclude=[1, 2, 3])
    with unit_of_work(engine) as db:
        datasets.rename(db, pets, "cats")
        place = RunDir(settings.runs / str(run.id))
        run_dir_setup.write_run_dir(db, runs.get(db, run.id or 0), place, settings)

    spec = JobSpec.model_validate_json(place.job.read_text())
    assert spec.train == settings.datasets / str(pets) / "1" / "train.jsonl"
    assert spec.dataset is not None
    assert (spec.dataset.name, spec.dataset.version, spec.dataset.train_rows) == ("cats", 1, 20)


def test_run_is_rejected_when_its_rows_were_deleted(
    engine: Engine, settings: Settings, pets: int
) -> None:
    with unit_of_work(engine) as db:
        run = runs.submit(db, experiments.create(db, "try", make_recipe(dataset="pets")))
        run_commands.cancel(db, run.id or 0)
        datasets.delete(db, settings.datasets, pets)
    with unit_of_work(engine) as db:
        dataset_builds.import_file(db, settings.datasets, upload(settings.datasets))
    with unit_of_work(engine) as db, pytest.raises(InvalidError) as refused:
        run_dir_setup.write_run_dir(
            db, runs.get(db, run.id or 0), RunDir(settings.runs / "1"), settings
        )

    assert refused.value.message == ("The rows of pets that this run trains on have been deleted.")


def test_version_used_by_run_cannot_be_deleted(engine: Engine, folder: Path, pets: int) -> None:
    with unit_of_work(engine) as db:
        runs.submit(db, experiments.create(db, "try", make_recipe(dataset="pets")))
    again(engine, folder, pets, exclude=[1])
    with unit_of_work(engine) as db, pytest.raises(ConflictError) as refused:
        versions.delete(db, folder, pets, 1)

    assert refused.value.message == "1 run uses version 1."


def test_unused_version_is_deleted_with_its_rows(engine: Engine, folder: Path, pets: int) -> None:
    again(engine, folder, pets, exclude=[1])
    with unit_of_work(engine) as db:
        versions.delete(db, folder, pets, 1)

    with read_session(engine) as db, pytest.raises(NotFoundError):
        versions.get(db, pets, 1)
    assert not (folder / str(pets) / "1").exists()


def test_current_version_cannot_be_deleted(engine: Engine, folder: Path, pets: int) -> None:
    with unit_of_work(engine) as db, pytest.raises(ConflictError):
        versions.delete(db, folder, pets, 1)


def test_older_version_can_be_activated(engine: Engine, folder: Path, pets: int) -> None:
    again(engine, folder, pets, exclude=[1])
    with unit_of_work(engine) as db:
        versions.activate(db, pets, 1)

    with read_session(engine) as db:
        assert versions.require(db, "pets").number == 1


def test_draft_is_kept_but_cannot_be_trained_on(engine: Engine, folder: Path) -> None:
    with unit_of_work(engine) as db:
        draft = pending_datasets.create(db, folder, upload(folder))
        with pytest.raises(InvalidError) as refused:
            datasets.require(db, "pets")

    assert (draft.status, draft.version) == (DatasetStatus.DRAFT, None)
    assert draft.detected["mapping"]["shape"] == "prompt_completion"
    assert refused.value.message == (
        "pets has no rows yet: it is a draft without a confirmed mapping."
    )


def test_draft_without_chosen_name_gets_free_name(db: Session, folder: Path) -> None:
    names = [pending_datasets.create(db, folder, upload(folder)).name for _ in range(3)]

    assert names == ["pets", "pets 2", "pets 3"]


def test_draft_with_undetected_columns_is_kept(db: Session, folder: Path) -> None:
    path = folder / ".arrived"
    path.write_text('{"a": 1, "b": 2}\n', encoding="utf-8")

    draft = pending_datasets.create(db, folder, Upload(path=path, filename="odd.jsonl"))

    assert (draft.status, draft.detected) == (DatasetStatus.DRAFT, {})


def test_validation_rows_may_come_from_other_dataset(
    engine: Engine, folder: Path, pets: int
) -> None:
    made = again(engine, folder, pets, split={"kind": "dataset", "dataset": "starter"})

    assert made.version is not None
    assert (made.version.train_rows, made.version.validation_rows) == (20, 40)


def test_rebuild_reads_uploaded_validation_file_again(engine: Engine, folder: Path) -> None:
    extra = folder / ".extra"
    extra.write_text('{"question": "Why?", "answer": "So."}\n', encoding="utf-8")
    with unit_of_work(engine) as db:
        brought = upload(folder, validation=extra, validation_filename="held.jsonl")
        made = dataset_builds.import_file(db, folder, brought)
        first = versions.require(db, "pets")
    later = again(engine, folder, made.id or 0, split={"kind": "dataset"}, exclude=[1])

    assert later.version is not None
    assert (first.validation_rows, later.version.validation_rows) == (1, 1)


def test_rows_are_found_by_words_and_numbers(engine: Engine, folder: Path, pets: int) -> None:
    with read_session(engine) as db:
        version = versions.get(db, pets, 1)
    found = versions.load_rows(folder, version, RowQuery(words="IS 1?"))
    named = versions.load_rows(folder, version, RowQuery(numbers=frozenset({3, 7, 99})))

    assert [(one.number, one.source) for one in found.rows] == [(2, 2)]
    assert ([one.number for one in named.rows], named.has_more) == ([3, 7], False)
