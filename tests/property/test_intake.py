"""What must hold for every file: no bytes crash a reader, and cutting them makes no difference."""

import gzip
import io
import json
import tempfile
from collections import deque
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from studio.errors import InvalidError, TooLargeError
from studio.intake.files.archives import chunks_as_file
from studio.intake.files.format_detection import detect_format
from studio.intake.files.formats import EXTENSIONS
from studio.intake.files.limits import Limits
from studio.intake.raw_rows import RawRow
from studio.intake.readers.file_reader import read_rows
from studio.intake.readers.json_rows import rows_in_json_list
from studio.intake.readers.text_rows import read_lines
from tests.unit.intake.conftest import zipped

TABLE: list[dict[str, Any]] = [{"prompt": "é" * 40, "n": i, "list": ["a"]} for i in range(40)]


def in_arrow() -> bytes:
    out, table = io.BytesIO(), pa.Table.from_pylist(TABLE)
    with pa.ipc.new_file(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as f:
        f.write_table(table)
    return out.getvalue()


def in_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(TABLE), out)
    return out.getvalue()


LINES = "".join(json.dumps(row) + "\n" for row in TABLE).encode()
FILES = {
    "rows.jsonl": LINES,
    "rows.json": json.dumps(TABLE).encode(),
    "rows.csv": b'a,b\n"x\ny",z\n' * 20,
    "rows.md": b"# A\n```\n# b\n```\nC\n===\n" * 20,
    "rows.parquet": in_parquet(),
    "rows.arrow": in_arrow(),
    "rows.jsonl.gz": gzip.compress(LINES),
    "rows.jsonl.zst": zstandard.compress(LINES),
    "rows.zip": zipped({"a.jsonl": LINES, "b.jsonl.gz": gzip.compress(LINES)}),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


LIMITS = Limits(row_bytes=1000, total_bytes=10**6)


def read(filename: str, content: bytes) -> None:
    """Read a file to its end, or to where it is refused in words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "uploaded"
        path.write_bytes(content)
        with suppress(InvalidError, TooLargeError):
            deque(read_rows(path, detect_format(path, filename), LIMITS), maxlen=0)


@given(
    ending=st.sampled_from([*EXTENSIONS, ".jsonl.gz", ".csv.zst", ".zip", ""]),
    start=st.sampled_from(
        [b"", b"PAR1", b"ARROW1\0\0", b"\x1f\x8b\x08\0", b"(\xb5/\xfd", b"PK\3\4"]
    ),
    rest=st.binary(max_size=300),
)
def test_arbitrary_bytes_do_not_crash_reader(ending: str, start: bytes, rest: bytes) -> None:
    read(f"rows{ending}", start + rest)


@given(
    filename=st.sampled_from(list(FILES)),
    place=st.floats(0, 1, exclude_max=True),
    patch=st.binary(min_size=1, max_size=8),
    cut=st.booleans(),
)
def test_corrupted_files_do_not_crash_reader(
    filename: str,
    place: float,
    patch: bytes,
    cut: bool,  # noqa: FBT001 -- hypothesis passes by name
) -> None:
    content = bytearray(FILES[filename])
    start = int(place * len(content))
    content[start : start + len(patch)] = patch
    read(filename, bytes(content[:start] if cut else content))


@given(found=st.lists(st.dictionaries(st.text(max_size=5), JSON)), size=st.integers(1, 50))
def test_json_list_is_read_back_into_its_rows(found: list[dict[str, Any]], size: int) -> None:
    text = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")

    read_back = list(rows_in_json_list(io.BytesIO(text), 10**6, size))

    assert read_back == [RawRow(i, json.loads(json.dumps(row))) for i, row in enumerate(found, 1)]


@given(content=st.binary(max_size=200), places=st.lists(st.integers(0, 200)))
def test_line_reading_does_not_depend_on_chunk_boundaries(
    content: bytes, places: list[int]
) -> None:
    ends = sorted({0, len(content), *(place for place in places if place < len(content))})
    pieces = [content[a:b] for a, b in pairwise(ends)]

    assert list(read_lines(chunks_as_file(iter(pieces)), 50)) == list(
        read_lines(io.BytesIO(content), 50)
    )
