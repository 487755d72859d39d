"""A few real steps, for estimates to go by."""

from pathlib import Path

import pytest

from studio.errors import TrainingError
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.calibrate import MEASURED_STEPS, calibrate
from tests.training import tiny

pytestmark = pytest.mark.slow


def chore(tmp_path: Path) -> TaskDir:
    folder = TaskDir(tmp_path / "chore")
    folder.files.mkdir(parents=True)
    return folder


def params(tmp_path: Path, model: Path) -> dict[str, object]:
    run = tiny.write_run(tmp_path / "run", model)
    return {"recipe": tiny.RECIPE, "job": run.job.read_text()}


def test_calibration_returns_measurements_and_leaves_no_files(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    folder = chore(tmp_path)

    told = calibrate(folder, params(tmp_path, model), lambda _phase, _share: None)

    assert told["steps"] == MEASURED_STEPS
    assert told["tokens"] > 0
    assert told["step_seconds"] > 0
    assert told["resolved"]["train_rows"] > 0
    assert list(folder.files.iterdir()) == []


def test_calibration_fails_with_same_error_as_run(tmp_path: Path) -> None:
    asked = params(tmp_path, tiny.write_model(tmp_path / "model", tiny.llama()))
    (tmp_path / "run" / "train.jsonl").write_text("{")

    with pytest.raises(TrainingError, match="not valid JSON"):
        calibrate(chore(tmp_path), asked, lambda _phase, _share: None)
