"""Checkpoints on a disk that fills up, without any training."""

import os
from pathlib import Path

import pytest

from studio.errors import TrainingError
from studio.methods import RECIPE_ADAPTER
from studio.training.checkpoints import checksums
from studio.training.checkpoints.store import CheckpointStore
from tests.training.tiny import RECIPE

pytestmark = pytest.mark.slow


def shelf(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, RECIPE_ADAPTER.validate_python(RECIPE))


def write(to: CheckpointStore, step: int, size: int) -> None:
    with to.write(step, None) as folder:
        (folder / "weights.safetensors").write_bytes(os.urandom(size))


def test_older_checkpoint_stays_valid_when_disk_fills_during_save(small: Path) -> None:
    checkpoints = shelf(small / "checkpoints")
    write(checkpoints, 1, 600_000)

    with pytest.raises(OSError, match="No space left"):
        write(checkpoints, 2, 600_000)

    assert [path.name for path in (small / "checkpoints").iterdir()] == ["checkpoint-1"]
    assert checksums.verify_folder(small / "checkpoints" / "checkpoint-1").step == 1


def test_insufficient_disk_space_is_detected_before_saving(small: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        shelf(small / "checkpoints").refuse_if_disk_full(600_000)

    assert (
        caught.value.message == "The checkpoint needs 0.6 MB, but only 1.0 MB are free on the disk."
    )


def test_partial_folders_are_ignored_and_deleted(tmp_path: Path) -> None:
    checkpoints = shelf(tmp_path / "checkpoints")
    write(checkpoints, 1, 10)
    (tmp_path / "checkpoints" / ".checkpoint-2.partial").mkdir()
    (tmp_path / "checkpoints" / ".checkpoint-0.removed").mkdir()

    found = checkpoints.newest_valid(print)

    assert found is not None
    assert found.step == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-1"]


def test_incomplete_checkpoint_is_skipped_with_alarm(tmp_path: Path) -> None:
    checkpoints = shelf(tmp_path / "checkpoints")
    told: list[str] = []
    write(checkpoints, 1, 10)
    checkpoints.folder_for(2).mkdir()

    found = checkpoints.newest_valid(lambda alarm: told.append(alarm.message))

    assert found is not None
    assert found.step == 1
    assert told == ["The checkpoint of step 2 cannot be used: it was never completed."]
