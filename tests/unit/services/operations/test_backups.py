"""Backups: all of a home and nothing else, proved by checksums, and brought back whole or not."""

import shutil
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from studio.db.session import open_engine, unit_of_work
from studio.db.states import RunStatus
from studio.errors import ConflictError, InvalidError, StudioError, UnavailableError
from studio.services.operations import backup_format, backups, home, restores
from studio.services.operations.backups import BackupOptions
from studio.services.runs import attempts, runs
from studio.settings import Settings
from tests.support.factories import make_finished_run, make_running


def quiet(_bytes: int) -> None:
    """Watch nothing."""


def made(settings: Settings, name: str = "b.zip", **choice: bool) -> Path:
    to = settings.home.parent / name
    backups.create(settings, to, BackupOptions(packed=to.suffix == ".zip", **choice), quiet)
    return to


def brought_back(backup: Path, into: Path, *, force: bool = False) -> Settings:
    with backup_format.open_backup(backup) as source:
        restores.restore(source, into, force=force, on_progress=quiet)
    return Settings(home=into)


def content(folder: Path) -> dict[str, bytes]:
    """Return a home's files but for the database, which is compared by its rows."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent != folder
    }


def rows(settings: Settings) -> list[tuple[object, ...]]:
    engine = open_engine(settings.database_file)
    with engine.connect() as connection:
        tables = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))
        found = [
            (name, *row)
            for name in sorted(tables.scalars())
            for row in connection.execute(text(f'SELECT * FROM "{name}"')).all()  # noqa: S608 -- our own tables
        ]
    engine.dispose()
    return found


@pytest.fixture
def filled(engine: Engine, settings: Settings) -> Settings:
    """Furnish a home with a run that has files."""
    with unit_of_work(engine) as db:
        run = make_finished_run(db)
    folder = settings.runs / str(run.id)
    for name in ("events.jsonl", "artifacts/model.safetensors", "checkpoints/1/optimizer.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * 1000)
    return settings


@pytest.fixture(params=["b.zip", "folder"])
def backup(filled: Settings, request: pytest.FixtureRequest) -> Path:
    return made(filled, request.param)


def test_restore_recovers_all_files_and_rows(
    filled: Settings, backup: Path, tmp_path: Path
) -> None:
    back = brought_back(backup, tmp_path / "back")

    assert content(back.home) == content(filled.home)
    assert rows(back) == rows(filled)


def test_models_and_checkpoints_can_be_left_out_of_backup(filled: Settings, tmp_path: Path) -> None:
    back = brought_back(made(filled, models=False, checkpoints=False), tmp_path / "back")

    assert sorted(content(back.home)) == [
        "datasets/1/1/train.jsonl",
        "runs/1/artifacts/model.safetensors",
        "runs/1/events.jsonl",
    ]


def test_incomplete_files_are_left_out_of_backup(filled: Settings, tmp_path: Path) -> None:
    for name in ("datasets/.new-1/x", "runs/1/artifacts.partial/x", "replaced-1/x", "backups/x"):
        (filled.home / name).parent.mkdir(parents=True)
        (filled.home / name).touch()
    back = brought_back(made(filled), tmp_path / "back")

    assert [name for name in content(back.home) if name.endswith("/x")] == []


def test_backup_never_overwrites_existing_backup(filled: Settings) -> None:
    first = made(filled)
    before = first.read_bytes()
    with pytest.raises(ConflictError, match="already exists"):
        made(filled)

    assert first.read_bytes() == before


def test_backup_inside_home_is_rejected(filled: Settings) -> None:
    with pytest.raises(InvalidError, match="lost together with it"):
        backups.create(filled, filled.home / "b.zip", BackupOptions(), quiet)


def test_corrupted_backup_is_detected_before_restoring(filled: Settings, tmp_path: Path) -> None:
    backup = made(filled, "folder")
    victim = backup / "runs/1/artifacts/model.safetensors"
    flipped = bytearray(victim.read_bytes())
    flipped[5] ^= 1
    victim.write_bytes(flipped)
    with pytest.raises(
        InvalidError,
        match=r"The checksum of runs/1/artifacts/model\.safetensors in the backup is wrong",
    ):
        brought_back(backup, tmp_path / "back")

    assert [path.name for path in (tmp_path / "back").iterdir()] == ["home.lock"]


def test_truncated_backup_is_rejected(filled: Settings, tmp_path: Path) -> None:
    backup = made(filled)
    backup.write_bytes(backup.read_bytes()[:-100])

    with pytest.raises(InvalidError, match="is not a backup, or it is damaged"):
        brought_back(backup, tmp_path / "back")


def test_missing_backup_file_is_reported(filled: Settings, tmp_path: Path) -> None:
    backup = made(filled, "folder")
    (backup / "runs/1/events.jsonl").unlink()

    with pytest.raises(InvalidError, match=r"or runs/1/events\.jsonl is missing"):
        brought_back(backup, tmp_path / "back")


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "home.lock", ".restored/in/x"])
def test_manifest_path_outside_home_is_rejected(
    filled: Settings, tmp_path: Path, name: str
) -> None:
    backup = made(filled, "folder")
    manifest = backup / "manifest.json"
    manifest.write_text(manifest.read_text().replace("runs/1/events.jsonl", name))

    with pytest.raises(InvalidError, match="is not a backup of this studio"):
        brought_back(backup, tmp_path / "back")


def test_unrelated_zip_is_rejected_as_backup(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme", "hello")

    with pytest.raises(InvalidError, match=r"or manifest\.json is missing"):
        brought_back(tmp_path / "x.zip", tmp_path / "back")


def test_backup_from_newer_version_is_rejected(filled: Settings, tmp_path: Path) -> None:
    backup = made(filled, "folder")
    manifest = backup / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"revision": "0', '"revision": "9'))

    with pytest.raises(UnavailableError, match="written by a newer version"):
        brought_back(backup, tmp_path / "back")


def test_restore_rejects_non_empty_home(filled: Settings, tmp_path: Path) -> None:
    backup = made(filled)
    other = shutil.copytree(filled.home, tmp_path / "other")
    before = content(other)
    with pytest.raises(ConflictError, match="is not empty"):
        brought_back(backup, other)

    assert content(other) == before


def test_cleanup_removes_leftovers_of_killed_restore(engine: Engine, filled: Settings) -> None:
    (filled.home / ".restoring" / "new").mkdir(parents=True)
    before = rows(filled)
    home.cleanup(engine, filled)

    assert not (filled.home / ".restoring").exists()
    assert rows(filled) == before


def test_forced_restore_sets_previous_home_aside(filled: Settings, tmp_path: Path) -> None:
    backup = made(filled)
    other = shutil.copytree(filled.home, tmp_path / "other")
    (other / "runs/1/events.jsonl").write_text("older")
    before = content(other)
    brought_back(backup, other, force=True)

    (aside,) = restores.list_replaced(other)
    assert content(aside) == before
    assert (other / "runs/1/events.jsonl").read_text() == "events.jsonl" * 1000


def test_forced_restore_never_replaces_unrelated_folder(filled: Settings, tmp_path: Path) -> None:
    backup, other = made(filled), tmp_path / "mine"
    other.mkdir()
    (other / "letter.txt").touch()

    with pytest.raises(ConflictError, match=r"is not a studio's home, and letter\.txt in it"):
        brought_back(backup, other, force=True)


@pytest.mark.slow
def test_restore_rejects_home_in_use(engine: Engine, filled: Settings) -> None:
    backup = made(filled)
    with pytest.raises(ConflictError, match="Another studio is already using"):
        brought_back(backup, filled.home, force=True)

    engine.dispose()


@pytest.mark.parametrize("moved", ["nothing", "all that was there", "half of what is to come"])
def test_interrupted_restore_is_completed_at_next_start(
    filled: Settings, tmp_path: Path, moved: str
) -> None:
    cut = brought_back(made(filled), tmp_path / "cut").home
    decided = cut / ".restored"
    (decided / "old").mkdir(parents=True)
    expected, names = content(cut), ("studio.db", "datasets", "models", "runs")
    (decided / "new").mkdir()
    for name in names:
        (cut / name).replace(decided / "new" / name)
    if moved == "nothing":
        shutil.copytree(filled.home / "runs", cut / "runs")
    else:
        (decided / "old" / "runs").mkdir()
        (decided / "new").replace(decided / "in")
    if moved == "half of what is to come":
        (decided / "in" / "runs").replace(cut / "runs")
    home.open_home(Settings(home=cut)).dispose()

    (aside,) = restores.list_replaced(cut)
    assert {name: data for name, data in content(cut).items() if aside.name not in name} == expected
    assert not decided.exists()


def test_running_run_is_paused_after_restore(db_run: tuple[Settings, int], tmp_path: Path) -> None:
    settings, number = db_run
    back = brought_back(made(settings), tmp_path / "back")
    engine = home.open_home(back)
    with unit_of_work(engine) as db:
        run = runs.get(db, number)
        assert (run.status, run.handle) == (RunStatus.PAUSED, "")
    engine.dispose()


@pytest.fixture
def db_run(engine: Engine, settings: Settings) -> tuple[Settings, int]:
    """Pretend that this very process trains a run."""
    with unit_of_work(engine) as db:
        run = make_running(db)
        attempts.record_process(run, "1@1.0@boot")
    return settings, run.id or 0


def test_backup_fails_when_dataset_is_deleted_during_it(filled: Settings, engine: Engine) -> None:
    def delete(_bytes: int) -> None:
        with unit_of_work(engine) as db:
            db.connection().execute(text("UPDATE run SET dataset_version_id = NULL"))
            db.connection().execute(text("DELETE FROM dataset"))

    with pytest.raises(ConflictError, match="Dataset 1 was deleted during the backup"):
        backups.create(filled, filled.home.parent / "b.zip", BackupOptions(), delete)

    assert list(filled.home.parent.glob("*b.zip")) == []
    assert list(filled.home.parent.glob(".new-*")) == []


def test_backup_without_studio_home_fails(tmp_path: Path) -> None:
    with pytest.raises(StudioError, match="There is no studio in"):
        backups.create(Settings(home=tmp_path / "none"), tmp_path / "b.zip", BackupOptions(), quiet)
