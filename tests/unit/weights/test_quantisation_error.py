"""What quantising would change of a model's weights."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from studio.weights import model_facts
from tests.unit.weights import safetensors_folders


def rounding(folder: Path, rows: Sequence[Sequence[float]]) -> dict[str, float]:
    values = [one for row in rows for one in row]
    header = {
        "layer.weight": safetensors_folders.tensor_entry(
            "F32", [len(rows), len(rows[0])], 0, 4 * len(values)
        )
    }
    folder.mkdir()
    safetensors_folders.write_raw(
        folder / "model.safetensors", header, safetensors_folders.encode("F32", values)
    )
    return dict(model_facts.read(folder).quantisation_errors)


def test_exactly_representable_weights_have_no_error(tmp_path: Path) -> None:
    assert rounding(tmp_path / "m", [[1.0, -1.0, 0.0, 1.0] * 16] * 4) == {"int8": 0, "nf4": 0}


def test_quantisation_scale_covers_row_or_64_weights(tmp_path: Path) -> None:
    rows = [[1.0, -1.0] * 64, [2.0**-20, 0.0] * 64]

    assert rounding(tmp_path / "m", rows) == {"int8": 0, "nf4": 0}


def test_outlier_hurts_int8_scale_more_than_nf4(tmp_path: Path) -> None:
    dice = random.Random(0)  # noqa: S311 -- no secret
    rows = [[1000.0, *(dice.gauss(0, 1) for _ in range(511))] for _ in range(4)]

    found = rounding(tmp_path / "m", rows)

    # All that is small in the row becomes zero in int8, and only in one block of eight in NF4.
    assert found["int8"] > found["nf4"] > 0


def test_error_of_normal_weights_matches_theory(tmp_path: Path) -> None:
    dice = random.Random(0)  # noqa: S311 -- no secret
    rows = [[dice.gauss(0, 0.02) for _ in range(512)] for _ in range(4)]

    found = rounding(tmp_path / "m", rows)

    largest = sum(max(map(abs, row)) for row in rows) / len(rows)
    step = largest / 127 / 0.02
    assert found["int8"] == pytest.approx(step / math.sqrt(12), rel=0.1)
    assert 0.08 < found["nf4"] < 0.11


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_damaged_model_has_no_quantisation_error(value: float, tmp_path: Path) -> None:
    assert rounding(tmp_path / "m", [[value, 1.0]]) == {}


def test_all_zero_model_has_no_quantisation_error(tmp_path: Path) -> None:
    assert rounding(tmp_path / "m", [[0.0] * 64]) == {}
