"""Combine several files of a hub dataset into one archive, with members named by split."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from studio.data_sources import FetchLimits
from studio.intake.files.archives import split_from_name
from studio.intake.files.formats import EXTENSIONS, extension, full_extension, without_compression
from studio.runner.sources.chunked_file import ChunkWriter
from studio.runner.task_dispatch import ReportProgress

_COMPRESS_LEVEL = 1
"""Compression level for JSON lines: shrinks them to about a fifth in little time."""


def validation_split(splits: Sequence[str], chosen: str) -> str:
    """Return the split to validate with when training on the chosen split, or "".

    A test split is used if there is no validation split.
    """
    if split_from_name(chosen) not in {"train", ""}:
        return ""
    split_names = {split_from_name(split): split for split in reversed(splits)}
    return split_names.get("validation") or split_names.get("test") or ""


def build_archive(
    builder: Any,  # noqa: ANN401 -- of datasets
    files: Mapping[str, Sequence[Path]],
    limits: FetchLimits,
    folder: Path,
    report: ReportProgress,
) -> Path:
    """Build one archive of the files of each split.

    The files stay unchanged, so that a bad row can be located and the others are kept. If the
    formats differ, `datasets` reads the files and they are written as JSON lines.

    Raises:
        TooLargeError: the rows exceed the size limit.

    """
    report("combining the files", 0.9)
    target = folder / "files.zip"
    if _has_one_format(files):
        with ZipFile(target, "w", ZIP_STORED) as archive:
            for name, path in _archive_names(files):
                archive.write(path, name)
        return target
    builder.config.data_files = {split: list(map(str, paths)) for split, paths in files.items()}
    size_check, size = ChunkWriter(limits, lambda _phase, _share: None), 0
    with ZipFile(target, "w", ZIP_DEFLATED, compresslevel=_COMPRESS_LEVEL) as archive:
        for split in files:
            with archive.open(f"{split}.jsonl", "w", force_zip64=True) as member:
                for line in _json_lines(builder, split):
                    size += len(line)
                    size_check.check_limit(size)
                    member.write(line)
    return target


def _has_one_format(files: Mapping[str, Sequence[Path]]) -> bool:
    names = (path.name for paths in files.values() for path in paths)
    formats = {EXTENSIONS.get(extension(without_compression(name))) for name in names}
    return len(formats) == 1 and None not in formats


def _archive_names(files: Mapping[str, Sequence[Path]]) -> Iterator[tuple[str, Path]]:
    """Name each file for its split alone: its own name may contradict the card."""
    for split, paths in files.items():
        for number, path in enumerate(paths, 1):
            suffix = f"-{number:05}-of-{len(paths):05}" if len(paths) > 1 else ""
            yield f"{split}{suffix}{full_extension(path.name)}", path


def _json_lines(builder: Any, split: str) -> Iterator[bytes]:  # noqa: ANN401 -- of datasets
    for row in builder.as_streaming_dataset(split=split):
        yield (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode()
