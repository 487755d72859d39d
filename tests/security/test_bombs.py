"""Files and bodies that are small on the way and huge inside, or lead their reader astray."""

import gzip
import io
import json
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from studio.errors import InvalidError, TooLargeError
from studio.intake.conversion.converter import SourceFile, convert_file
from studio.intake.files.archives import list_members
from studio.intake.files.format_detection import detect_format
from studio.intake.files.limits import Limits
from tests.security.raw_requests import Target, send_raw

MB = 2**20
ROW = b'{"prompt": "a", "completion": "b"}\n'
LIMITS = Limits(row_bytes=MB, total_bytes=4 * MB)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "uploaded"
    path.write_bytes(content)
    return path


def archive(*names: str, mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that come twice
        for name in names:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.external_attr = mode << 16
            file.writestr(info, ROW)
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bombs")


@settings(max_examples=25, deadline=None)
@given(
    lead=st.sampled_from(["../", "..\\", "/", "\\", "C:\\", "c:/", "a/../../", "a\\..\\", "//s/"]),
    name=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=30),
    beside=st.booleans(),
)
def test_archive_with_path_traversal_is_rejected(
    folder: Path, lead: str, name: str, *, beside: bool
) -> None:
    names = [lead + name, *(["train.jsonl"] if beside else [])]
    path = written(folder, archive(*names))

    with pytest.raises(InvalidError):
        list_members(path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_archive_with_special_file_is_rejected(tmp_path: Path, kind: int) -> None:
    path = written(tmp_path, archive("rows.jsonl", mode=kind | 0o777))

    with pytest.raises(InvalidError):
        list_members(path)


def test_tar_archive_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, b"\x00" * 257 + b"ustar" + b"\x00" * 250)

    with pytest.raises(InvalidError, match="tar archive"):
        detect_format(path, "rows.tar")


def test_archive_with_overlapping_members_is_rejected(tmp_path: Path) -> None:
    """One packed megabyte, named ten times."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("0.jsonl", ROW * (MB // len(ROW)))
        (info,) = file.infolist()
        for number in range(1, 10):
            twin = zipfile.ZipInfo(f"{number}.jsonl")
            for name in ("CRC", "compress_size", "file_size", "compress_type", "header_offset"):
                setattr(twin, name, getattr(info, name))
            file.filelist.append(twin)
            file.NameToInfo[twin.filename] = twin
    path = written(tmp_path, packed.getvalue())

    with pytest.raises((InvalidError, TooLargeError)):
        convert_file(SourceFile(path=path, filename="rows.zip"), None, tmp_path, LIMITS)


def parquet_of(letters: int, rows: int) -> bytes:
    out = io.BytesIO()
    words = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * letters])
    parquet.write_table(pa.table({"prompt": words, "completion": words}), out)
    return out.getvalue()


def lines_of(_letters: int, rows: int) -> bytes:
    return json.dumps({"prompt": "x" * 1000, "completion": "b"}).encode() + b"\n" + ROW * 30 * rows


BOMBS: dict[str, Callable[[int, int], bytes]] = {
    "rows.parquet": parquet_of,
    "rows.jsonl.gz": lambda letters, rows: gzip.compress(lines_of(letters, rows)),
    "rows.jsonl.zst": lambda letters, rows: zstandard.compress(lines_of(letters, rows)),
}


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_decompression_bomb_is_stopped_at_size_limit(tmp_path: Path, name: str) -> None:
    content = BOMBS[name](900, 5000)
    path = written(tmp_path, content)

    assert len(content) * 100 < LIMITS.total_bytes
    with pytest.raises(TooLargeError):
        convert_file(SourceFile(path=path, filename=name), None, tmp_path, LIMITS)


def test_arrow_extension_type_is_not_unpickled(tmp_path: Path) -> None:
    """As in CVE-2023-47248: the pickle that the schema names would make a file."""
    mark = tmp_path / "mark"
    pickled = b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + str(mark).encode() + b"\ntRtR."
    names = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    field = pa.field("prompt", pa.string(), metadata=names | {b"ARROW:extension:metadata": pickled})
    schema = pa.schema([field, pa.field("completion", pa.string())])
    out = io.BytesIO()
    with pa.ipc.new_file(out, schema) as file:
        file.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], schema=schema))
    path = written(tmp_path, out.getvalue())

    convert_file(SourceFile(path=path, filename="rows.arrow"), None, tmp_path, LIMITS)

    assert not mark.exists()


ODD = st.sampled_from(
    [b"NaN", b"1e400", b"-Infinity", b'"\\ud800"', b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}", b"\xff"]
) | st.sampled_from(
    [b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b'"' + b"\\" * 9999, b"", b"\x00"]
)
BODIES = (
    ODD
    | st.binary(max_size=60)
    | st.builds(b'{"name": %b, "recipe": %b}'.__mod__, st.tuples(ODD, ODD))
)


@settings(max_examples=30, deadline=None)
@given(
    path=st.sampled_from(
        ["/api/v1/runs", "/api/v1/datasets", "/api/v1/tokens", "/v1/chat/completions"]
    ),
    body=BODIES,
)
def test_malformed_request_bodies_return_client_error(
    place: Target, path: str, body: bytes
) -> None:
    answer = place.client.post(path, content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code // 100, "error" in answer.json()) == (4, True)


def test_form_with_too_many_fields_is_rejected(place: Target) -> None:
    form = {f"field{number}": "x" for number in range(2000)}

    assert place.client.post("/experiments/new", data=form).status_code // 100 == 4


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), min_size=1, max_size=50),
    times=st.sampled_from([1, 100]),
)
def test_multi_range_response_is_no_larger_than_file(
    place: Target, parts: list[tuple[int, int]], times: int
) -> None:
    wanted = "bytes=" + ",".join(f"{first}-{last}" for first, last in parts * times)
    headers = [(b"host", b"testserver"), (b"range", wanted.encode())]
    whole = len(send_raw(place, "/static/css/base.css").body)
    answer = send_raw(place, "/static/css/base.css", headers=headers)

    assert answer.status in {200, 206, 400, 416, 431}
    assert len(answer.body) <= whole + 200 * len(parts)


def test_zip_with_false_directory_size_is_rejected(tmp_path: Path) -> None:
    """A zip whose directory says that it is larger than the file."""
    content = bytearray(archive("rows.jsonl"))
    end = content.rindex(b"PK\x05\x06")
    struct.pack_into("<I", content, end + 12, 2**31)
    path = written(tmp_path, bytes(content))

    with pytest.raises(InvalidError):
        list_members(path)


def deep(levels: int) -> Any:  # noqa: ANN401 -- any JSON
    return b'{"a":' * levels + b"1" + b"}" * levels


@settings(max_examples=15, deadline=None)
@given(bad=ODD | st.integers(2, 2000).map(deep), at=st.integers(0, 3))
def test_invalid_line_is_skipped_and_other_rows_are_kept(
    tmp_path_factory: pytest.TempPathFactory, bad: bytes, at: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    lines = [ROW] * 4
    lines.insert(at, bad + b"\n")
    path = written(folder, b"".join(lines))
    try:
        found = convert_file(SourceFile(path=path, filename="rows.jsonl"), None, folder, LIMITS)
    except InvalidError:
        return  # It is no text at all.

    assert found.rows == 4
