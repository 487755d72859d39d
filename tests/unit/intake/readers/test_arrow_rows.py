"""Arrow files as programs write them, and as someone may break them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from studio.errors import InvalidError
from studio.intake.files.limits import Limits
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import RawRow, UnreadableRow
from studio.intake.readers.columnar_rows import rows_in_arrow

Read = Callable[..., list[Any]]


def stream(*batches: Any, compression: str | None = None) -> bytes:  # noqa: ANN401 -- pyarrow is untyped
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, batches[0].schema, options=options) as file:
        for batch in batches:
            file.write_batch(batch)
    return out.getvalue()


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def _read(content: bytes, limit: int = 10_000) -> list[Any]:
        path = tmp_path / "rows.arrow"
        path.write_bytes(content)
        with path.open("rb") as file:
            return list(rows_in_arrow(file, Limits(row_bytes=limit), None))

    return _read


def test_row_numbers_continue_across_batches(read: Read) -> None:
    batch = pa.record_batch({"a": list(range(20))})

    found = read(stream(batch, batch))

    assert [(row.number, row.values["a"]) for row in found] == [
        *enumerate(range(20), 1),
        *enumerate(range(20), 21),
    ]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_all_value_types_are_read(read: Read, compression: str | None) -> None:
    values = {
        "list": [["a", "b"], []],
        "turns": [[{"role": "user", "content": "é"}], None],
        "label": [True, None],
        "word": pa.array(["x", "x"]).dictionary_encode(),
    }

    found = read(stream(pa.record_batch(values), compression=compression))

    assert found == [
        RawRow(
            1,
            {
                "list": ["a", "b"],
                "turns": [{"role": "user", "content": "é"}],
                "label": True,
                "word": "x",
            },
        ),
        RawRow(2, {"list": [], "turns": None, "label": None, "word": "x"}),
    ]


def test_too_long_row_is_reported_and_others_are_kept(read: Read) -> None:
    batch = pa.record_batch({"a": ["short", "x" * 5000, "last"]})

    assert read(stream(batch), 1000) == [
        RawRow(1, {"a": "short"}),
        UnreadableRow(2, ProblemCode.TOO_LONG, "the limit is 0.000954 MB"),
        RawRow(3, {"a": "last"}),
    ]


def test_value_out_of_python_range_is_reported(read: Read) -> None:
    batch = pa.record_batch({"a": pa.array([2**62, 0], pa.timestamp("s"))})

    (first, second) = read(stream(batch))

    assert (first.number, first.code, second.number) == (1, ProblemCode.BROKEN_VALUE, 2)


def test_batch_unpacking_too_large_is_rejected_before_unpacking(read: Read) -> None:
    content = stream(pa.record_batch({"a": ["x" * 2**20] * 130}), compression="zstd")

    with pytest.raises(InvalidError) as refused:
        read(content)

    assert len(content) < 2**20
    assert refused.value.message == "A batch of the Arrow file unpacks to more than 128 MB."


def test_declared_but_missing_rows_are_rejected(read: Read) -> None:
    with pytest.raises(InvalidError):
        read(stream(pa.record_batch({"a": pa.nulls(10**9)})))


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_truncated_arrow_file_is_rejected(read: Read, cut: int) -> None:
    out = io.BytesIO()
    batch = pa.record_batch({"a": ["x" * 100] * 100})
    with pa.ipc.new_file(out, batch.schema) as file:
        file.write_batch(batch)

    with pytest.raises(InvalidError) as refused:
        read(out.getvalue()[:-cut])

    assert refused.value.message == "The Arrow file is damaged and cannot be fully read."
