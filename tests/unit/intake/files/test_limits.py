"""What reading a file may cost: each limit ends it, and says the number and the limit."""

import gzip
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from studio.errors import TooLargeError
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import (
    MAX_COLUMNS,
    Deadline,
    Limits,
    SlowReadingError,
    exempt_from_deadlines,
)
from studio.intake.problems import ProblemCode
from studio.intake.quality import language_check
from studio.intake.raw_rows import RawRow, UnreadableRow
from studio.intake.readers.columnar_rows import unpacked_bytes
from studio.intake.readers.file_reader import read_rows
from studio.intake.readers.text_rows import read_lines
from tests.unit.intake.conftest import zipped

MB = 2**20
Read = Callable[..., list[Any]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def _read(filename: str, content: bytes, **limits: Any) -> list[Any]:  # noqa: ANN401 -- of Limits
        path = tmp_path / "uploaded"
        path.write_bytes(content)
        return list(read_rows(path, detect_format(path, filename), Limits(**limits)))

    return _read


def in_parquet(**columns: Any) -> bytes:  # noqa: ANN401 -- pyarrow is untyped
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def in_arrow(**columns: Any) -> bytes:  # noqa: ANN401 -- pyarrow is untyped
    out, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue()


def repeated(text: str, count: int) -> Any:  # noqa: ANN401 -- pyarrow is untyped
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text])


@pytest.mark.parametrize("write", [in_parquet, in_arrow])
def test_dictionary_unpacking_beyond_file_size_limit_is_rejected(
    read: Read, write: Callable[..., bytes]
) -> None:
    content = write(text=repeated("x" * 100_000, 3_000))

    with pytest.raises(TooLargeError) as refused:
        read("rows.parquet" if write is in_parquet else "rows.arrow", content, free_bytes=MB)

    assert f"The file of {len(content):,} bytes unpacks to more than" in refused.value.message
    assert "the limit is 1,000 times its size" in refused.value.message


@pytest.mark.parametrize("write", [in_parquet, in_arrow])
def test_too_long_row_of_repeated_references_is_skipped(
    read: Read, write: Callable[..., bytes]
) -> None:
    many = pa.ListArray.from_arrays([0, 1_000, 1_001], repeated("x" * 1_000, 1_001))

    found = read(
        "rows.parquet" if write is in_parquet else "rows.arrow", write(a=many), row_bytes=10_000
    )

    assert [(type(row), row.number) for row in found] == [(UnreadableRow, 1), (RawRow, 2)]
    assert found[0].code is ProblemCode.TOO_LONG


def strings(*lengths: int) -> list[str]:
    return ["x" * length for length in lengths]


SIZES: dict[str, tuple[Any, int]] = {
    "dictionary": (repeated("x" * 50, 4), 200),
    "views": (pa.array(strings(5, 50, 500), pa.string_view()), 555),
    "views of a slice": (pa.array(strings(5, 50, 500), pa.string_view()).slice(1, 1), 50),
    "list": (pa.ListArray.from_arrays([0, 3, 4], repeated("x" * 50, 4)), 200),
    "list of a slice": (pa.ListArray.from_arrays([0, 3, 4], repeated("x" * 50, 4)).slice(1), 50),
    "nulls": (pa.array([[None] * 5000]), 5000),
    "map": (pa.array([[("k" * 100, "v" * 100)]], pa.map_(pa.string(), pa.string())), 200),
    "struct": (pa.array([{"a": "x" * 100, "b": "y" * 100}]), 200),
    "overlapping views": (
        pa.ListViewArray.from_arrays([0] * 9, [9] * 9, pa.array(strings(*[100] * 9))),
        81 * 100,
    ),
    "runs": (pa.RunEndEncodedArray.from_arrays([5000], ["x" * 100]), 5000 * 100),
    "numbers": (pa.array(range(100)), 800),
}


@pytest.mark.parametrize("name", sorted(SIZES))
def test_unpacked_size_counts_repeated_values(name: str) -> None:
    array, least = SIZES[name]

    assert least <= unpacked_bytes(array) <= 20 * least + 1000


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_too_many_consecutive_blank_lines_are_rejected(
    read: Read, pack: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(TooLargeError) as refused:
        read(
            "rows.jsonl.gz" if pack is gzip.compress else "rows.jsonl.zst", pack(b"\n" * 1_200_000)
        )

    assert refused.value.message == (
        "The file has more than 1,100,000 consecutive blank lines, up to line 1,100,001."
    )


def test_blank_line_limit_counts_only_consecutive_lines() -> None:
    text = b"a\n \n\r\n" * 10

    assert len(list(read_lines(io.BytesIO(text), 100, blank_lines=2))) == 30
    with pytest.raises(TooLargeError):
        list(read_lines(io.BytesIO(text), 100, blank_lines=1))


WIDE: dict[str, Callable[[list[str]], bytes]] = {
    "rows.csv": lambda names: (",".join(names) + "\n" + ",".join(names) + "\n").encode(),
    "rows.jsonl": lambda names: json.dumps(dict.fromkeys(names, 1)).encode(),
    "rows.json": lambda names: json.dumps([dict.fromkeys(names, 1)]).encode(),
    "rows.parquet": lambda names: in_parquet(**{name: ["x"] for name in names}),
    "rows.arrow": lambda names: in_arrow(**{name: ["x"] for name in names}),
    "rows.zip": lambda names: zipped({"a.csv": ",".join(names).encode()}),
}


@pytest.mark.parametrize("filename", sorted(WIDE))
def test_table_with_too_many_columns_is_rejected(read: Read, filename: str) -> None:
    with pytest.raises(TooLargeError) as refused:
        read(filename, WIDE[filename]([f"c{i}" for i in range(MAX_COLUMNS + 1)]))

    assert refused.value.message.endswith("The file has 1,001 columns; the limit is 1,000.")
    assert read(filename, WIDE[filename]([f"c{i}" for i in range(9)])) is not None


def test_cell_limit_counts_all_files_of_archive(read: Read) -> None:
    archive = zipped({"a.jsonl": b'{"a": 1, "b": 2}\n{}\n', "b.jsonl": b'{"a": 1}\n[]\n'})

    assert len(read("rows.zip", archive, cells=5)) == 4
    with pytest.raises(TooLargeError, match="more than 4 cells"):
        read("rows.zip", archive, cells=4)


SLOW = {
    "rows.jsonl": b"{}\n" * 1000,
    "rows.csv": b"a,b\n" * 1000,
    "rows.jsonl.gz": gzip.compress(b"{}\n" * 1000),
    "rows.parquet": in_parquet(a=["x"] * 1000),
}


@pytest.mark.parametrize("filename", sorted(SLOW))
def test_reading_stops_when_cpu_time_is_exceeded(read: Read, filename: str) -> None:
    with pytest.raises(SlowReadingError, match="more than 0 seconds of CPU time"):
        read(filename, SLOW[filename], deadline=Deadline.after(0))


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_exempt_work_does_not_count_towards_deadline() -> None:
    deadline = Deadline.after(0.05)
    with exempt_from_deadlines():
        busy(0.1)
    deadline.check()
    busy(0.1)

    with pytest.raises(SlowReadingError, match=r"more than 0\.05 seconds"):
        deadline.check()


def test_language_model_loading_is_exempt_from_deadline() -> None:
    language_check._load_identifier.cache_clear()
    begun, deadline = time.thread_time(), Deadline.after(1e9)
    language_check._load_identifier()
    took = time.thread_time() - begun

    assert deadline.end - Deadline.after(1e9).end == pytest.approx(0, abs=took / 10)


FIRST_USE = """
import io, time
from array import array
from studio.intake.files.limits import Deadline, Limits
{imports}
begun, deadline = time.thread_time(), Deadline.after(1e9)
{use}
took = time.thread_time() - begun
print((Deadline.after(1e9).end - deadline.end) / took)
"""
"""Print which share of the first use of a heavy package is charged to the file."""


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        (
            "from studio.intake.rows import deduplication",
            "deduplication.find_repeats(array('q'), 1)",
        ),
        ("from studio.intake.files.packages import load_excel", "load_excel()"),
        (
            "from studio.intake.files.encodings import guess_encoding",
            "guess_encoding(io.BufferedReader(io.BytesIO('Écran cassé'.encode('cp1252'))))",
        ),
        (
            "from studio.intake.readers.columnar_rows import rows_in_parquet",
            (
                "try: list(rows_in_parquet(io.BytesIO(b'PAR1'), Limits(), None))\n"
                "except Exception as error: assert 'damaged' in str(error)"
            ),
        ),
    ],
)
def test_package_loading_is_exempt_from_deadline(imports: str, use: str) -> None:
    code = FIRST_USE.format(imports=imports, use=use)
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout

    assert float(printed) < 0.5
