"""Archives: what in them is data, and which of them are refused."""

import io
import stat
import struct
import warnings
import zipfile
from pathlib import Path

import pytest

from studio.errors import InvalidError
from studio.intake.files.archives import Member, assign_splits, list_members, split_from_name
from studio.intake.files.format_detection import detect_format
from tests.unit.intake.conftest import Convert, zipped

ROW = b'{"prompt": "a", "completion": "b"}\n'


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "uploaded"
    path.write_bytes(content)
    return path


def refusal(path: Path) -> InvalidError:
    with pytest.raises(InvalidError) as refused:
        detect_format(path, "rows.zip")
    return refused.value


def test_list_members_includes_split_from_file_name(tmp_path: Path) -> None:
    names = ["data/train.jsonl", "dev-00001.csv", "latest.json", "test/rows.md", "train_v1.txt"]
    path = written(tmp_path, zipped(dict.fromkeys([*names, "README.md", ".git/a.txt"], ROW)))

    assert list_members(path) == [
        Member(name="data/train.jsonl", bytes=len(ROW), split="train"),
        Member(name="dev-00001.csv", bytes=len(ROW), split="validation"),
        Member(name="latest.json", bytes=len(ROW), split=""),
        Member(name="test/rows.md", bytes=len(ROW), split="test"),
        Member(name="train_v1.txt", bytes=len(ROW), split="train"),
    ]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("training_set.csv", "train"),
        ("validation.parquet", "validation"),
        ("valid/rows.jsonl", "validation"),
        ("my-dev.json.gz", "validation"),
        ("eval_2.jsonl", "validation"),
        ("evaluation.jsonl", "validation"),
        ("test-00000-of-00001.parquet", "test"),
        ("train/test.jsonl", "test"),
        ("device.jsonl", ""),
        ("contest/latest.jsonl", ""),
    ],
)
def test_file_name_determines_split(name: str, split: str) -> None:
    assert split_from_name(name) == split


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.csv", "test.csv"], ["train", "validation"]),
        (["train.csv", "dev.csv", "test.csv"], ["train", "validation", "aside"]),
        (["a.csv", "valid.csv"], ["train", "validation"]),
        (["a.csv", "b.csv"], ["train", "train"]),
        (["test.csv"], ["train"]),
        (["dev.csv", "test.csv"], ["train", "train"]),
    ],
)
def test_assigned_splits_depend_on_all_file_names(names: list[str], expected: list[str]) -> None:
    found = assign_splits(Member(name=name, bytes=1, split=split_from_name(name)) for name in names)

    assert list(found.items()) == list(zip(names, expected, strict=True))


def test_non_archive_file_has_no_members(tmp_path: Path) -> None:
    assert list_members(written(tmp_path, ROW)) == []


@pytest.mark.parametrize(
    "name", ["../evil.jsonl", "/etc/evil.jsonl", "C:\\evil.jsonl", "..\\evil.jsonl", "a/../b.jsonl"]
)
def test_archive_with_path_outside_it_is_rejected(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, zipped({name: ROW}))

    assert (
        refusal(path).message == "The zip archive contains a file that points outside the archive."
    )


def test_archive_with_symlink_is_rejected(tmp_path: Path) -> None:
    out = io.BytesIO()
    link = zipfile.ZipInfo("rows.jsonl")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    path = written(tmp_path, out.getvalue())

    assert (
        refusal(path).message == "The zip archive contains a file that points outside the archive."
    )


def test_archive_with_duplicate_names_is_rejected(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("rows.jsonl", ROW)
        archive.writestr("rows.jsonl", ROW)
    path = written(tmp_path, out.getvalue())

    assert refusal(path).message == "The zip archive contains two files with the same name."


def test_nested_archive_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, zipped({"inner.zip": zipped({"rows.jsonl": ROW})}))

    assert refusal(path).message == "The zip archive contains another archive, inner.zip."


def test_encrypted_archive_is_rejected(tmp_path: Path) -> None:
    content = bytearray(zipped({"rows.jsonl": ROW}))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path = written(tmp_path, bytes(content))

    refused = refusal(path)

    assert refused.message == "The zip archive is encrypted."
    assert refused.hint == "Create it without a password."


def test_lzma_compressed_archive_is_rejected(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("rows.jsonl", ROW)
    path = written(tmp_path, out.getvalue())

    assert refusal(path).message == "The zip archive uses an unsupported compression method."


def test_archive_with_too_many_files_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, zipped({f"{i}.txt": b"" for i in range(50_001)}))

    assert refusal(path).message == "The zip archive contains more than 50,000 files."


def test_oversized_zip_directory_is_rejected_before_reading(tmp_path: Path) -> None:
    # The end says how large the directory before it is.
    size = 9_000_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, size, 4, 0)
    path = written(tmp_path, b"PK\x03\x04" + b"\0" * size + end)

    assert refusal(path).message == "The zip archive contains more than 50,000 files."


def test_archive_with_several_formats_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, zipped({"a.jsonl": ROW, "b.csv": b"a,b\n", "c.jsonl": ROW}))

    assert refusal(path).message == (
        "The zip archive contains files of several formats: a.jsonl, b.csv."
    )


def test_archive_without_data_files_error_lists_contents(tmp_path: Path) -> None:
    path = written(tmp_path, zipped({"README.md": b"x", "a.png": b"x"}))

    assert refusal(path).message == (
        "The zip archive contains no data files, only README.md, a.png."
    )


def test_member_with_wrong_extension_is_named_in_error(tmp_path: Path) -> None:
    path = written(tmp_path, zipped({"a.csv": b"\x89PNG\r\n\x1a\n" * 9}))

    assert refusal(path).message == (
        "a.csv in the zip archive: The file has the extension .csv, but its content is a PNG image."
    )


def test_member_with_mismatched_header_names_is_rejected(tmp_path: Path) -> None:
    content = bytearray(zipped({"rows.jsonl": ROW}))
    content[30] = ord("R")
    path = written(tmp_path, bytes(content))

    assert refusal(path).message.startswith(
        "rows.jsonl in the zip archive: The packed file is damaged"
    )


def test_damaged_archive_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, zipped({"rows.jsonl": ROW})[:-30])

    assert refusal(path).message == (
        "The zip archive is damaged and cannot be fully unpacked (File is not a zip file)."
    )


def test_member_with_leading_dot_slash_is_read(bring: Convert) -> None:
    row = b'{"prompt": "a", "completion": "b"}\n'

    assert (
        bring(zipped({"./train.jsonl": row, "./.hidden.jsonl": row}), "a.zip").converted.rows == 1
    )
