"""Data sets of older homes: their files are moved, whatever cuts that off."""

import hashlib
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from studio.db import migrate
from studio.db.session import open_engine, read_session, unit_of_work
from studio.db.tables import Dataset, DatasetVersion, Run
from studio.services.datasets import pending_datasets, versions
from studio.services.operations import home
from studio.settings import Settings

ROW = b'{"messages": []}\n'


@pytest.fixture
def older(engine: Engine, settings: Settings) -> Path:
    """Lay a data set's files out as before there were versions. Return its folder."""
    place = settings.datasets / "1"
    (place / "1" / "train.jsonl").replace(place / "train.jsonl")
    (place / "1").rmdir()
    (place / "validation.jsonl").write_bytes(ROW)
    with unit_of_work(engine) as db:
        version = versions.get(db, 1, 1)
        version.sha256, version.validation_rows = "", 1
    return place


def test_opening_home_migrates_dataset_files(
    engine: Engine, settings: Settings, older: Path
) -> None:
    engine.dispose()
    again = home.open_home(settings)

    with read_session(again) as db:
        version = versions.get(db, 1, 1)
    again.dispose()
    assert sorted(path.name for path in older.iterdir()) == ["1", "validation-original.jsonl"]
    train, validation = versions.row_files(settings.datasets, version)
    assert validation is not None
    parts = (("train.jsonl", train), ("validation.jsonl", validation))
    assert version.sha256 == hash_of(parts)


def hash_of(parts: tuple[tuple[str, Path], ...]) -> str:
    digest = hashlib.sha256()
    for name, path in parts:
        digest.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def test_interrupted_migration_is_continued(
    engine: Engine, settings: Settings, older: Path
) -> None:
    (older / "1").mkdir()
    (older / "train.jsonl").replace(older / "1" / "train.jsonl")

    home.migrate_layout(engine, settings.datasets)

    assert sorted(path.name for path in (older / "1").iterdir()) == [
        "train.jsonl",
        "validation.jsonl",
    ]
    assert not home.needs_migration(engine)


@pytest.mark.usefixtures("older")
def test_completed_but_unrecorded_migration_is_recorded(engine: Engine, settings: Settings) -> None:
    home.migrate_layout(engine, settings.datasets)
    with unit_of_work(engine) as db:
        version = versions.get(db, 1, 1)
        known, version.sha256 = version.sha256, ""

    home.migrate_layout(engine, settings.datasets)

    with read_session(engine) as db:
        assert versions.get(db, 1, 1).sha256 == known


def test_migration_keeps_original_validation_file(
    engine: Engine, settings: Settings, older: Path
) -> None:
    home.migrate_layout(engine, settings.datasets)

    with read_session(engine) as db:
        found = pending_datasets.validation_source(settings.datasets, db.get_one(Dataset, 1))
    assert found is not None
    assert found.path == older / "validation-original.jsonl"


def test_legacy_dataset_becomes_first_version(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "studio.db")
    migrate.upgrade(engine, "0006")
    with engine.begin() as connection:
        for name, at in (("pets", "2026-01-01"), ("late", "2026-03-01")):
            connection.execute(
                text(
                    "INSERT INTO dataset (name, filename, format, shape, mapping, bytes, sha256,"
                    " train_rows, validation_rows, problems, created_at) VALUES (:name, 'a', 'csv',"
                    " 'prompt_completion', :mapping, 9, 'f', 5, 2, '[]', :at)"
                ),
                {"name": name, "at": at, "mapping": '{"prompt": "q", "completion": "a"}'},
            )
    add_runs(engine, "pets", "2", "late")
    migrate.upgrade(engine)

    with read_session(engine) as db:
        first, dataset = versions.get(db, 1, 1), db.get_one(Dataset, 1)
        used = [db.get_one(Run, number).dataset_version_id for number in (1, 2, 3)]
    engine.dispose()
    assert (dataset.version, first.train_rows, first.validation_rows) == (1, 5, 2)
    assert first.mapping == {
        "shape": "prompt_completion",
        "roles": {"prompt": ["q"], "completion": ["a"]},
        "split": {"kind": "dataset"},
    }
    assert isinstance(first, DatasetVersion)
    assert used == [1, None, None]


def add_runs(engine: Engine, *names: str) -> None:
    """Add runs of February, each on a data set named so, as they were kept then."""
    recipe = '{"method": "sft", "base_model": "m", "precision": "bf16", "dataset": "%s"}'
    experiment = (
        "INSERT INTO experiment (name, notes, tags, recipe, created_at)"
        " VALUES ('e', '', '[]', :recipe, :at)"
    )
    run = (
        "INSERT INTO run (experiment_id, name, recipe, status, priority, is_held, slots, attempt,"
        " resumes, worker, handle, resumed_step, events_offset, phase, step, epoch, tokens,"
        " metrics, resolved, error_code, error_message, error_hint, created_at)"
        " VALUES (1, 'r', :recipe,"
        " 'queued', 0, 0, 1, 0, 0, '', '', 0, 0, '', 0, 0, 0, '{}', '{}', '', '', '', :at)"
    )
    with engine.begin() as connection:
        connection.execute(text(experiment), {"recipe": recipe % names[0], "at": "2026-02-01"})
        for name in names:
            connection.execute(text(run), {"recipe": recipe % name, "at": "2026-02-01"})
