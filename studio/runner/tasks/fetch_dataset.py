"""Fetch a dataset's file from a local folder, a URL, the hub, a bucket or the samples."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studio import files
from studio.data_sources import (
    FetchLimits,
    FetchRequest,
    FetchResult,
    HubDatasetSource,
    LocalFileSource,
    S3Source,
    SampleSource,
    UploadSource,
    UrlSource,
    resolve_inside,
)
from studio.errors import InvalidError, NotFoundError, TooLargeError
from studio.intake.conversion.converter import SourceFile as File
from studio.intake.conversion.job import DETECTION_RESULT_ADAPTER, detect_file
from studio.intake.files import limits
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.runner.sandbox import limit_reading
from studio.runner.sources import http, hub, s3
from studio.runner.sources.chunked_file import CHUNK_BYTES, format_size
from studio.settings import Settings
from studio.starter import samples


def fetch(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Fetch what a `FetchRequest` names into the task's folder. Return a `FetchResult`.

    Raises:
        StudioError: the file cannot be fetched, or exceeds the size limit.

    """
    request, settings = FetchRequest.model_validate(params), Settings()
    file, filename, facts = _fetch_from_source(request, settings, folder, report)
    allowed = limits.Limits(row_bytes=request.limits.row_bytes, total_bytes=request.limits.bytes)
    report("reading the first rows", 0.9)
    with limit_reading(allowed, file.stat().st_size) as limited:
        detection = detect_file(File(path=file, filename=filename), limited)
    files.sync(file)
    result = FetchResult(
        file=file.relative_to(folder.files).as_posix(),
        filename=filename,
        bytes=file.stat().st_size,
        sha256=_sha256(file, lambda share: report("computing the checksum", 0.9 + 0.1 * share)),
        arrival=DETECTION_RESULT_ADAPTER.dump_python(detection, mode="json"),
        facts=facts,
    )
    return result.model_dump()


def _fetch_from_source(
    request: FetchRequest, settings: Settings, folder: TaskDir, report: ReportProgress
) -> tuple[Path, str, dict[str, Any]]:
    """Fetch the file. Return its path, its original name, and facts about its origin."""
    match request.source:
        case LocalFileSource(path=path):
            source = resolve_inside(settings.import_folders, path)
            return copy_file(source, folder.files, request.limits, report), source.name, {}
        case SampleSource(id=name):
            samples.write(name, folder.files / "fetched")
            return folder.files / "fetched", samples.filename(name), {}
        case UploadSource(upload=upload):
            return _take_upload(settings.uploads / upload, folder.files)
        case UrlSource(url=url):
            download = http.DownloadRequest(
                url, request.limits, allow_internal=settings.allow_internal_addresses
            )
            return http.fetch(download, folder.files, report)
        case HubDatasetSource() as source:
            return hub.fetch(source, request.limits, settings, folder.files, report)
        case S3Source(url=url):
            return s3.fetch(url, request.limits, settings, folder.files, report)


def copy_file(source: Path, folder: Path, limits: FetchLimits, report: ReportProgress) -> Path:
    """Copy a file from this machine."""
    if not source.is_file():
        raise InvalidError(f"{source.name} is not a file.", hint="Choose a file.", param="path")
    size, done = source.stat().st_size, 0
    if size > limits.bytes:
        raise TooLargeError(f"{source.name} is larger than the upload limit: {format_size(size)}.")
    target = folder / "fetched"
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(CHUNK_BYTES):
            written.write(piece)
            done += len(piece)
            report(f"copied {format_size(done)} of {format_size(size)}", 0.9 * done / size)
    return target


def _take_upload(parts: Path, folder: Path) -> tuple[Path, str, dict[str, Any]]:
    """Move an uploaded file here; a later attempt finds it already moved."""
    target, name = folder / "fetched", folder / "filename"
    if not target.exists():
        if not (parts / "data").exists():
            raise NotFoundError("The uploaded file no longer exists.", hint="Upload it again.")
        (parts / "filename").replace(name)
        (parts / "data").replace(target)
    return target, name.read_text(encoding="utf-8"), {}


def _sha256(path: Path, report_share: Callable[[float], None]) -> str:
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            done += len(piece)
            report_share(done / size)
    return digest.hexdigest()
