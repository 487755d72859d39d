"""NaN, infinity and blank matrices in a model's files."""

import math
from pathlib import Path

import pytest

from studio.services.precision import recommendation
from studio.weights import model_facts, safetensors_headers, weight_samples
from studio.weights.weight_samples import WeightDefects
from tests.support.factories import make_recipe
from tests.unit.weights import safetensors_folders

SOUND = [0.0, -1.5, 2.0**-20, 3.0, 60000.0]


def scanned(folder: Path, most: int = weight_samples.MAX_SCANNED_BYTES) -> WeightDefects:
    return weight_samples.scan(
        safetensors_headers.read_tensors(folder / safetensors_headers.WEIGHTS_FILE), most
    )


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16"])
def test_non_finite_values_are_counted_per_tensor(tmp_path: Path, code: str) -> None:
    values: safetensors_folders.Values = {
        "sound": (code, SOUND),
        "nan": (code, [*SOUND, math.nan, *SOUND]),
        "infinite": (code, [math.inf, *SOUND, -math.inf]),
    }
    safetensors_folders.write(tmp_path, values)

    assert scanned(tmp_path) == WeightDefects(not_finite={"nan": 1, "infinite": 2}, all_zero=())


def test_largest_finite_values_are_not_defects(tmp_path: Path) -> None:
    largest: safetensors_folders.Values = {
        "a": ("F32", [3.4028234663852886e38, -3.4028234663852886e38]),
        "b": ("F16", [65504.0, -65504.0]),
        "c": ("F64", [1.7976931348623157e308]),
    }
    safetensors_folders.write(tmp_path, largest)

    assert scanned(tmp_path).not_finite == {}


def test_zero_matrix_is_reported_but_zero_vector_is_not(tmp_path: Path) -> None:
    shapes = {"a.weight": ("F32", [4, 4]), "bias": ("F32", [4])}
    found = model_facts.read(safetensors_folders.write_empty(tmp_path, shapes))

    assert found.defects.all_zero == ("a.weight",)
    said = "All zeros: a.weight. The file may be incomplete; compare its size or checksum."
    assert said in recommendation.list_warnings(make_recipe(), found)


def test_large_model_is_sampled_equally_per_tensor(tmp_path: Path) -> None:
    """The broken number stands in the middle of one tensor, and at the end of the other."""
    middle = [*[1.0] * 50, math.nan, *[1.0] * 49]
    end = [*[1.0] * 99, math.nan]
    safetensors_folders.write(tmp_path, {"middle": ("F32", middle), "end": ("F32", end)})

    assert scanned(tmp_path, 80) == WeightDefects(not_finite={"middle": 1}, is_complete=False)
    assert scanned(tmp_path, 800).not_finite == {"middle": 1, "end": 1}


def test_chunks_of_large_tensor_are_combined(tmp_path: Path) -> None:
    safetensors_folders.write(tmp_path, {"a": ("F16", [*[1.0] * (2**21), math.nan])})

    assert scanned(tmp_path).not_finite == {"a": 1}
