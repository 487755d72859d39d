"""What a folder of safetensors files holds, and what a lying one is told."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.weights import safetensors_headers
from studio.weights.safetensors_headers import WEIGHTS_FILE
from tests.unit.weights import safetensors_folders

GOOD = safetensors_folders.tensor_entry("F32", [2], 0, 8)


def refusal_of(path: Path) -> str:
    with pytest.raises(InvalidError) as caught:
        safetensors_headers.read_tensors(path)
    return caught.value.message.removeprefix(f"{path.name} cannot be used: it ")


def test_tensors_have_name_dtype_shape_and_position(tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path, {"a": ("F32", [1, 2, 3]), "b": ("BF16", [4])})
    data = (folder / WEIGHTS_FILE).read_bytes()

    a, b = safetensors_headers.read_tensors(folder / WEIGHTS_FILE)
    assert (a.name, a.dtype, a.shape, a.size) == ("a", "float32", (3,), 3)
    assert (b.name, b.dtype, b.shape, b.start) == ("b", "bfloat16", (1,), len(data) - 2)


def test_header_is_read_without_weights(tmp_path: Path) -> None:
    """Twenty gigabytes of nothing: a reader of them all would be noticed."""
    folder = safetensors_folders.write_empty(tmp_path, {"a": ("F32", [50_000, 100_000])})

    (found,) = safetensors_headers.read_tensors(folder / WEIGHTS_FILE)
    assert found.size == 5_000_000_000


def test_shards_come_from_index(tmp_path: Path) -> None:
    for name in ("one", "two", "stray"):
        safetensors_folders.write(tmp_path, {name: ("F32", [1])}, f"{name}.safetensors")
    safetensors_folders.write_index(tmp_path, {"one": "one.safetensors", "two": "two.safetensors"})

    found = safetensors_headers.weight_files(tmp_path)
    assert [path.name for path in found] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize("name", ["gone.safetensors", "../model.safetensors", "/etc/passwd", "."])
def test_index_with_path_outside_folder_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    safetensors_folders.write(tmp_path, {"a": ("F32", [1])})
    safetensors_folders.write_index(tmp_path / "model", {"a": name})

    with pytest.raises(InvalidError, match="which is not in the same folder"):
        safetensors_headers.weight_files(tmp_path / "model")


def test_folder_without_weights_has_no_files(tmp_path: Path) -> None:
    assert safetensors_headers.weight_files(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is incomplete, or not a safetensors file."),
        (b"\0\0\0", "is incomplete, or not a safetensors file."),
        (struct.pack("<Q", 2**60) + b"{}", "is incomplete, or not a safetensors file."),
        (struct.pack("<Q", 9) + b"{not json", "has a header that is not valid JSON."),
        (struct.pack("<Q", 2) + b"[]", "has a header that is not a JSON object."),
        (
            struct.pack("<Q", 200_000) + b"[" * 200_000,
            "has a header that is not valid JSON.",
        ),
    ],
    ids=["empty", "short", "2**60", "no json", "a list", "nested"],
)
def test_invalid_safetensors_file_is_rejected(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes(content)

    assert refusal_of(tmp_path / WEIGHTS_FILE) == said


def test_oversized_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / WEIGHTS_FILE
    path.write_bytes(struct.pack("<Q", safetensors_headers.MAX_HEADER_BYTES + 1))
    with path.open("r+b") as opened:
        opened.truncate(safetensors_headers.MAX_HEADER_BYTES * 2)

    assert refusal_of(path) == "has a header that is too long."


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({}, "does not give the position of a."),
        ("F32", "does not give the position of a."),
        (GOOD | {"shape": [-2]}, "gives an impossible shape or position for a."),
        (GOOD | {"shape": [True]}, "gives an impossible shape or position for a."),
        (GOOD | {"shape": [1] * 9}, "gives an impossible shape or position for a."),
        (GOOD | {"data_offsets": [8, 0]}, "gives an impossible shape or position for a."),
        (GOOD | {"data_offsets": [-8, 0]}, "gives an impossible shape or position for a."),
        (GOOD | {"data_offsets": [0, 9]}, "is incomplete."),
        (GOOD | {"shape": [3]}, "gives a size for a that does not match its shape."),
    ],
)
def test_inconsistent_header_is_rejected(tmp_path: Path, told: Any, said: str) -> None:  # noqa: ANN401 -- whatever a file may say
    safetensors_folders.write_raw(tmp_path / WEIGHTS_FILE, {"a": told}, b"\0" * 8)

    assert refusal_of(tmp_path / WEIGHTS_FILE) == said


def test_unknown_dtype_keeps_its_name(tmp_path: Path) -> None:
    safetensors_folders.write_raw(
        tmp_path / WEIGHTS_FILE, {"a": GOOD | {"dtype": "F2_NEW"}}, b"\0" * 8
    )

    (found,) = safetensors_headers.read_tensors(tmp_path / WEIGHTS_FILE)
    assert found.dtype == "f2_new"


def test_long_tensor_name_is_shortened_in_error(tmp_path: Path) -> None:
    safetensors_folders.write_raw(tmp_path / WEIGHTS_FILE, {"a" * 10_000: {}}, b"")

    assert refusal_of(tmp_path / WEIGHTS_FILE) == f"does not give the position of {'a' * 100}."


def test_index_without_weight_map_is_rejected(tmp_path: Path) -> None:
    (tmp_path / safetensors_headers.INDEX_FILE).write_text(json.dumps({"weight_map": ["a"]}))

    with pytest.raises(InvalidError, match="has no weight_map"):
        safetensors_headers.weight_files(tmp_path)
