"""Small files that native code would unpack without end: another process reads them first."""

import gzip
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.errors import TooLargeError
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.job import ConversionJob, check_in_child
from studio.intake.files.limits import Limits, SlowReadingError


def reading(folder: Path, column: Any, limits: Limits | None = None) -> ConversionJob:  # noqa: ANN401 -- pyarrow is untyped
    path = folder / "rows.parquet"
    # Without the schema, a dictionary is not kept as one when it is read.
    parquet.write_table(pa.table({"text": column}), path, compression="zstd", store_schema=False)
    source = SourceFile(path=path, filename=path.name)
    return ConversionJob(source=source, mapping=None, limits=limits or Limits())


def test_parquet_needing_too_much_memory_is_rejected(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), ["x" * 1_000_000])
    job = reading(tmp_path, pa.ListArray.from_arrays([0, 5000], words))

    assert job.source.path.stat().st_size < 1000
    with pytest.raises(TooLargeError, match=r"needs more than 1\.1 GB of memory"):
        check_in_child(job)


def test_slow_parquet_check_raises_slow_reading_error(tmp_path: Path) -> None:
    with pytest.raises(SlowReadingError):
        check_in_child(reading(tmp_path, ["x"] * 1000, Limits(at_once_seconds=0)))


def test_valid_parquet_passes(tmp_path: Path) -> None:
    check_in_child(reading(tmp_path, ["x"] * 1000))


def test_columns_that_load_time_zones_pass_the_sealed_check(tmp_path: Path) -> None:
    """Packed, too: its content is unpacked to a file that is open before the seal."""
    now = [datetime.now(UTC)] * 20
    for number, (unit, zone) in enumerate(
        [("us", "Europe/Berlin"), ("ns", "Asia/Kolkata"), ("ms", "+02:00"), ("s", "Mars/Base")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        times = pa.array(now, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
        job = reading(folder, times.cast(pa.timestamp(unit, zone)))
        packed = job.source.path.with_suffix(".parquet.gz")
        packed.write_bytes(gzip.compress(job.source.path.read_bytes()))

        check_in_child(job)
        check_in_child(replace(job, source=SourceFile(path=packed, filename=packed.name)))


def test_jsonl_file_is_checked_without_child_process(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x"}\n', encoding="utf-8")
    source = SourceFile(path=path, filename=path.name)

    check_in_child(ConversionJob(source=source, mapping=None, limits=Limits(at_once_seconds=0)))


def test_unreadable_validation_file_passes_child_check(tmp_path: Path) -> None:
    job = reading(tmp_path, ["x"] * 10)
    other = tmp_path / "validation.parquet"
    other.write_bytes(b"no such thing")

    check_in_child(replace(job, validation=SourceFile(path=other, filename=other.name)))
