"""Every format, however it is packed, gives the same rows, and never more than is allowed."""

import gzip
import io
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import feather, parquet

from studio.errors import InvalidError, TooLargeError
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RawRow
from studio.intake.readers.file_reader import read_rows
from tests.unit.intake.conftest import zipped

VALUES: list[dict[str, Any]] = [
    {"prompt": "é", "completion": "b\n"},
    {"prompt": "a, b", "completion": '"c"'},
]
TEXTS: list[dict[str, Any]] = [{"text": "# Ä\none"}, {"text": "# B\ntwo"}]
Found = list[Any]


def as_lines() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in VALUES).encode()


def as_arrow(open_file: Callable[..., Any]) -> bytes:
    out, table = io.BytesIO(), pa.Table.from_pylist(VALUES)
    with open_file(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue()


def as_feather() -> bytes:
    out = io.BytesIO()
    feather.write_feather(pa.Table.from_pylist(VALUES), out, compression="lz4")
    return out.getvalue()


def as_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(VALUES), out)
    return out.getvalue()


CONTENTS: dict[str, tuple[bytes, list[RawRow | FileNote]]] = {
    "rows.jsonl": (as_lines(), [RawRow(1, VALUES[0]), RawRow(2, VALUES[1])]),
    "rows.json": (json.dumps(VALUES).encode(), [RawRow(1, VALUES[0]), RawRow(2, VALUES[1])]),
    "rows.csv": (
        'prompt,completion\n"é","b\n"\n"a, b","""c"""\n'.encode(),
        [RawRow(2, VALUES[0]), RawRow(4, VALUES[1])],
    ),
    "rows.tsv": (
        'prompt\tcompletion\né\t"b\n"\na, b\t"""c"""\n'.encode(),
        [RawRow(2, VALUES[0]), RawRow(4, VALUES[1])],
    ),
    "rows.parquet": (as_parquet(), [RawRow(1, VALUES[0]), RawRow(2, VALUES[1])]),
    "file.arrow": (as_arrow(pa.ipc.new_file), [RawRow(1, VALUES[0]), RawRow(2, VALUES[1])]),
    "stream.arrow": (as_arrow(pa.ipc.new_stream), [RawRow(1, VALUES[0]), RawRow(2, VALUES[1])]),
    "rows.feather": (as_feather(), [RawRow(1, VALUES[0]), RawRow(2, VALUES[1])]),
    "rows.txt": (
        "# Ä\none\n\n# B\ntwo\n".encode(),
        [FileNote(ProblemCode.BY_PARAGRAPH), RawRow(1, TEXTS[0]), RawRow(4, TEXTS[1])],
    ),
    "rows.md": (
        "# Ä\none\n\n# B\ntwo\n".encode(),
        [FileNote(ProblemCode.BY_HEADING), RawRow(1, TEXTS[0]), RawRow(4, TEXTS[1])],
    ),
}
PACKINGS: dict[str, Callable[[str, bytes], bytes]] = {
    "": lambda _name, content: content,
    ".gz": lambda _name, content: gzip.compress(content),
    ".zst": lambda _name, content: zstandard.compress(content),
    ".zip": lambda name, content: zipped({f"folder/{name}": content}),
    ".gz.zip": lambda name, content: zipped({f"{name}.gz": gzip.compress(content)}),
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Found]:
    def _read(
        filename: str,
        content: bytes,
        columns: list[str] | None = None,
        **limits: Any,  # noqa: ANN401 -- of `Limits`
    ) -> Found:
        path = tmp_path / "uploaded"
        path.write_bytes(content)
        made = replace(Limits(row_bytes=10_000), **limits)
        return list(read_rows(path, detect_format(path, filename), made, columns))

    return _read


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("filename", CONTENTS)
def test_every_format_is_read_with_every_compression(
    read: Callable[..., Found], tmp_path: Path, filename: str, packing: str
) -> None:
    content, expected = CONTENTS[filename]

    found = read(filename + packing, PACKINGS[packing](filename, content))

    assert found == expected
    assert [path.name for path in tmp_path.iterdir()] == ["uploaded"]


@pytest.mark.parametrize("filename", ["rows.parquet", "file.arrow", "rows.feather"])
def test_unselected_columns_are_not_read(read: Callable[..., Found], filename: str) -> None:
    found = read(filename, CONTENTS[filename][0], columns=["prompt"])

    assert found == [RawRow(1, {"prompt": "é"}), RawRow(2, {"prompt": "a, b"})]


def test_archive_files_are_read_in_name_order(
    read: Callable[..., Found],
) -> None:
    archive = zipped({"b.jsonl": as_lines(), "a.jsonl.gz": gzip.compress(b'{"prompt": "first"}')})

    found = read("rows.zip", archive)

    assert found == [
        RawRow(1, {"prompt": "first"}, "a.jsonl.gz"),
        RawRow(2, VALUES[0], "b.jsonl", 1),
        RawRow(3, VALUES[1], "b.jsonl", 1),
    ]
    assert [row.place for row in found] == ["1 of a.jsonl.gz", "1 of b.jsonl", "2 of b.jsonl"]


def test_archive_rows_carry_split_with_train_rows_first(
    read: Callable[..., Found],
) -> None:
    names = ["dev.jsonl", "test.jsonl", "train.jsonl"]
    archive = zipped({name: b'{"from": "%s"}' % name.encode() for name in names})

    found = read("rows.zip", archive)

    assert [(row.number, row.values["from"], row.split) for row in found] == [
        (1, "train.jsonl", "train"),
        (2, "dev.jsonl", "validation"),
        (3, "test.jsonl", "aside"),
    ]


def test_invalid_line_counts_towards_archive_row_numbers(read: Callable[..., Found]) -> None:
    archive = zipped({"a.jsonl": b'{"a": 1}\n\noops\n', "b.jsonl": b'{"a": 2}\n'})

    found = read("rows.zip", archive)

    assert [(one.number, one.member, one.member_offset) for one in found] == [
        (1, "a.jsonl", 0),
        (3, "a.jsonl", 0),
        (4, "b.jsonl", 3),
    ]


def test_unused_archive_files_are_reported(read: Callable[..., Found]) -> None:
    beside = {"README.md": b"x", "__MACOSX/._rows.jsonl": b"x", "a.png": b"x", "empty.csv": b""}

    found = read("rows.zip", zipped({"rows.jsonl": b"{}"} | beside))

    assert found == [
        FileNote(ProblemCode.UNUSED_FILES, "README.md, __MACOSX/._rows.jsonl, a.png, empty.csv"),
        RawRow(1, {}),
    ]


@pytest.mark.parametrize("packing", [".gz", ".zst", ".zip", ".gz.zip"])
@pytest.mark.parametrize("filename", ["rows.jsonl", "rows.parquet"])
def test_unpacking_stops_at_size_limit(
    read: Callable[..., Found], tmp_path: Path, filename: str, packing: str
) -> None:
    content = CONTENTS[filename][0]
    packed = PACKINGS[packing](filename, content)

    with pytest.raises(TooLargeError) as refused:
        read(filename + packing, packed, total_bytes=len(content) - 1)

    assert refused.value.param == "file"
    assert [path.name for path in tmp_path.iterdir()] == ["uploaded"]


def test_archive_files_share_one_size_limit(read: Callable[..., Found]) -> None:
    lines = as_lines()
    archive = zipped({"a.jsonl": lines, "b.jsonl": lines})

    with pytest.raises(TooLargeError):
        read("rows.zip", archive, total_bytes=2 * len(lines) - 1)


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_truncated_compressed_file_is_rejected(read: Callable[..., Found], packing: str) -> None:
    packed = PACKINGS[packing]("", as_lines() * 10_000)

    with pytest.raises(InvalidError) as refused:
        read(f"rows.jsonl{packing}", packed[:-5])

    assert refused.value.hint == (
        "It may be incomplete. Compress it again, or upload it uncompressed."
    )


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_concatenated_compressed_streams_are_fully_read(
    read: Callable[..., Found], packing: str
) -> None:
    pack = PACKINGS[packing]

    found = read(f"rows.jsonl{packing}", pack("", b'{"a": 1}\n') + pack("", b'{"a": 2}\n'))

    assert found == [RawRow(1, {"a": 1}), RawRow(2, {"a": 2})]


_LINE = json.dumps({"prompt": "q" * 1000, "completion": "a" * 1000}).encode() + b"\n"
_MEASURED = r"""
import re, sys
from pathlib import Path
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits
from studio.intake.readers.file_reader import read_rows
from studio.intake.raw_rows import RawRow

path = Path(sys.argv[1])
found = sum(isinstance(row, RawRow)
  for row in read_rows(path, detect_format(path, path.name), Limits()))
print(found, re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(_LINE * 100_000, 1))


def write_zstandard(path: Path) -> None:
    path.write_bytes(zstandard.compress(_LINE * 100_000))


def write_one_batch(path: Path) -> None:
    batch = pa.record_batch({"prompt": ["q" * 2000] * 100_000})
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)


def write_one_group(path: Path) -> None:
    table = pa.table({"prompt": ["q" * 2000] * 100_000})
    parquet.write_table(table, path, use_dictionary=False, compression="none")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it")
@pytest.mark.parametrize(
    ("filename", "write", "megabytes"),
    [
        ("rows.jsonl.gz", write_gzip, 60),
        ("rows.jsonl.zst", write_zstandard, 60),
        ("rows.arrow", write_one_batch, 170),
        ("rows.parquet", write_one_group, 170),
    ],
)
def test_reading_200_megabytes_uses_bounded_memory(
    tmp_path: Path, filename: str, write: Callable[[Path], None], megabytes: int
) -> None:
    path = tmp_path / filename
    write(path)

    child = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(path)], capture_output=True, text=True, check=True
    )

    found, kilobytes = map(int, child.stdout.split())
    assert found == 100_000
    assert kilobytes < megabytes * 2**10


def test_zstandard_block_of_zeros_is_unpacked_in_pieces(
    read: Callable[..., Found],
) -> None:
    # Each four bytes of it stand for 128 KB.
    packed = zstandard.compress(b'{"a": "' + b"0" * 50_000_000, 1)

    with pytest.raises(TooLargeError):
        read("rows.jsonl.zst", packed, total_bytes=1_000_000)


def test_gzip_file_with_wrong_checksum_is_rejected(read: Callable[..., Found]) -> None:
    packed = bytearray(gzip.compress(as_lines()))
    packed[-8:-4] = (zlib.crc32(as_lines()) ^ 1).to_bytes(4, "little")

    with pytest.raises(InvalidError) as refused:
        read("rows.jsonl.gz", bytes(packed))

    assert refused.value.message.startswith(
        "The gzip file is damaged and cannot be fully unpacked (CRC check failed"
    )
