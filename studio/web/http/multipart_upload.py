"""Multipart uploads: files are written to disk as they arrive, never held in memory.

Starlette's parser would spool them to the system's temporary folder, which may be small or in
memory; these go next to their final location, so that saving one is a rename.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Self

from fastapi import Depends
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from studio.errors import InvalidError, StudioError
from studio.intake.files.limits import ImageLimits, Limits
from studio.intake.mapping import FileOptions, Mapping
from studio.schemas.validation_errors import field_errors
from studio.services.datasets.pending_datasets import Upload
from studio.services.storage import atomic_dirs
from studio.settings import Settings
from studio.web.http import idempotency
from studio.web.http.deps import Config

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_CHUNK_BYTES = 2**20
_MAX_FIELD_BYTES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedFile:
    """A fully received file."""

    path: Path
    filename: str
    sha256: str


@dataclass(slots=True)
class UploadWriter:
    """Writes a file and hashes it on the way, so that it need not be read again."""

    path: Path
    filename: str
    _file: BinaryIO
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @classmethod
    def open(cls, path: Path, filename: str) -> Self:
        return cls(path, filename, path.open("wb"))

    def write(self, data: memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)

    def close(self) -> ReceivedFile:
        self._file.close()
        return ReceivedFile(path=self.path, filename=self.filename, sha256=self._digest.hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedForm:
    """The fields and files of a form. Empty controls are omitted."""

    fields: dict[str, str]
    files: dict[str, ReceivedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFields:
    """The fields a form may have; any other field is rejected."""

    text_fields: frozenset[str]
    file_fields: frozenset[str]


_DATASET_FIELDS = FormFields(
    text_fields=frozenset({"name", "mapping", "draft", *FileOptions.model_fields}),
    file_fields=frozenset({"file", "validation_file"}),
)


@asynccontextmanager
async def receive_form(
    request: Request, parent: Path, names: FormFields
) -> AsyncIterator[UploadedForm]:
    """Read a form with files, which are deleted afterwards unless they were moved.

    Raises:
        DiskFullError: The disk is full.
        InvalidError: The body is not a multipart form, or has an unexpected field.
        TooLargeError: The body exceeds the limit, which `RequestGuard` enforces.

    """
    with atomic_dirs.staging_dir(parent) as stage:
        writer = _FormWriter(stage, names)
        try:
            await _feed_parser(request, writer)
        finally:
            writer.discard_open_file()
        yield writer.form()


async def _feed_parser(request: Request, writer: "_FormWriter") -> None:
    write = _make_parser(request, writer)
    failure: StudioError | None = None
    async for data in _read_chunks(request):
        # After a failure the rest is still read: a browser that is still sending would mistake an
        # early response for a lost connection.
        failure = failure or await run_in_threadpool(_try_write, write, data)
    if failure is not None:
        raise failure
    if not writer.ended:
        raise InvalidError("The upload is incomplete.", hint="Try again.", param="file")


async def _read_chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in chunks large enough to be worth a thread switch."""
    buffer = bytearray()
    try:
        async for chunk in request.stream():
            buffer += chunk
            if len(buffer) >= _CHUNK_BYTES:
                yield bytes(buffer)
                buffer.clear()
    except ClientDisconnect as error:
        raise InvalidError("The upload was interrupted.", param="file") from error
    yield bytes(buffer)


def _make_parser(request: Request, writer: "_FormWriter") -> Callable[[bytes], int]:
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise _invalid_upload()
    callbacks: MultipartCallbacks = {
        "on_part_begin": writer.begin,
        "on_header_field": writer.header_name,
        "on_header_value": writer.header_value,
        "on_header_end": writer.header_end,
        "on_headers_finished": writer.open,
        "on_part_data": writer.data,
        "on_part_end": writer.close,
        "on_end": writer.end,
    }
    return MultipartParser(boundary, callbacks).write


def _try_write(write: Callable[[bytes], int], data: bytes) -> StudioError | None:
    try:
        with atomic_dirs.explain_disk_full():
            write(data)
    except StudioError as error:
        return error
    except FormParserError:
        return _invalid_upload()
    return None


def _invalid_upload() -> InvalidError:
    return InvalidError(
        "Could not read the upload.", hint="Send it as multipart/form-data.", param="file"
    )


@dataclass(slots=True)
class _FormWriter:
    """Handles the parser's callbacks, part by part, and writes files as they arrive."""

    folder: Path
    names: FormFields
    ended: bool = False
    fields: dict[str, bytearray] = field(default_factory=dict)
    files: dict[str, ReceivedFile] = field(default_factory=dict)
    _name: str = ""
    _file: UploadWriter | None = None
    _header: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    _disposition: bytes = b""

    def form(self) -> UploadedForm:
        fields = {name: value.decode("utf-8", "replace") for name, value in self.fields.items()}
        # Browsers send an empty file control as a file without a name.
        files = {name: file for name, file in self.files.items() if file.filename}
        return UploadedForm(fields=fields, files=files)

    def begin(self) -> None:
        self._disposition = b""

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def header_end(self) -> None:
        name, value = map(bytes, self._header)
        if name.lower() == b"content-disposition":
            self._disposition = value
        self._header = (bytearray(), bytearray())

    def open(self) -> None:
        _kind, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            self._open_file(options[b"filename"].decode("utf-8", "replace"))
        elif self._name in self.names.text_fields:
            self.fields[self._name] = bytearray()
        else:
            raise InvalidError(f"Unknown field: {self._name}.", param=self._name)

    def _open_file(self, filename: str) -> None:
        if self._name not in self.names.file_fields or self._name in self.files:
            raise InvalidError(f"Unexpected file in field {self._name}.", param=self._name)
        path = self.folder / self._name
        self._file = UploadWriter.open(path, filename)

    def data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(memoryview(data)[start:end])
            return
        value = self.fields[self._name]
        value += data[start:end]
        if len(value) > _MAX_FIELD_BYTES:
            raise InvalidError("This value is too long.", param=self._name)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self.files[self._name] = file.close()

    def discard_open_file(self) -> None:
        """Close a file that is still open; errors do not matter, as it is discarded."""
        with suppress(OSError):
            self.close()

    def end(self) -> None:
        self.ended = True


async def receive_dataset(request: Request, config: Config) -> AsyncIterator[Upload]:
    async with receive_form(request, config.datasets, _DATASET_FIELDS) as form:
        file, validation = form.files.get("file"), form.files.get("validation_file")
        if file is None:
            raise InvalidError("No file selected.", hint="Choose a file to upload.", param="file")
        await idempotency.raise_if_answered(request, _form_fingerprint(form))
        options, mapping = (
            parse_file_options(form.fields),
            _parse_mapping(form.fields.get("mapping", "")),
        )
        yield Upload(
            path=file.path,
            filename=file.filename,
            name=form.fields.get("name", ""),
            validation=validation.path if validation else None,
            validation_filename=validation.filename if validation else "",
            options=options,
            mapping=mapping and _with_file_options(mapping, options),
            is_draft=form.fields.get("draft", "") in {"true", "1"},
            limits=read_limits(config),
            sha256=file.sha256,
        )


def _form_fingerprint(form: UploadedForm) -> bytes:
    """Return the content of a form, independent of its multipart encoding."""
    files = {name: (file.filename, file.sha256) for name, file in form.files.items()}
    return json.dumps([form.fields, files]).encode()


def read_limits(config: Settings) -> Limits:
    """Return the limits for reading a file."""
    images = ImageLimits(
        bytes=config.image_limit_bytes,
        pixels=config.image_limit_pixels,
        total_bytes=config.images_limit_bytes,
        allow_internal=config.allow_internal_addresses,
    )
    return Limits(
        row_bytes=config.line_limit_bytes, total_bytes=config.upload_limit_bytes, images=images
    )


def parse_file_options(fields: dict[str, str]) -> FileOptions:
    """Return the options of a form for reading a file.

    Raises:
        InvalidError: A field is invalid; `param` names it.

    """
    given_options = {name: fields[name] for name in FileOptions.model_fields if fields.get(name)}
    try:
        return FileOptions.model_validate(given_options)
    except ValidationError as error:
        first_error = field_errors(error.errors(), FileOptions)[0]
        raise InvalidError(first_error.message, param=first_error.param) from error


def _with_file_options(mapping: Mapping, options: FileOptions) -> Mapping:
    chosen = options.model_dump(exclude_defaults=True)
    return mapping.model_copy(update={"file": mapping.file.model_copy(update=chosen)})


def _parse_mapping(text: str) -> Mapping | None:
    if not text:
        return None
    try:
        return Mapping.model_validate_json(text)
    except ValidationError as error:
        first_error = field_errors(error.errors(), Mapping)[0]
        raise InvalidError(
            f"The mapping is invalid. {first_error}",
            hint="Send it as JSON, as returned by GET /api/v1/datasets/{id}/detection.",
            param="mapping",
        ) from error


NewUpload = Annotated[Upload, Depends(receive_dataset)]
"""A fully received dataset file, with its form fields."""
