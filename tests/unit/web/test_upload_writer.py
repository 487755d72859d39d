"""Files on their way in: written as they come, and never half kept."""

import asyncio
import hashlib
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message

from studio.errors import DiskFullError, InvalidError
from studio.web.http.multipart_upload import (
    FormFields,
    UploadedForm,
    _feed_parser,
    _FormWriter,
    receive_form,
)

NAMES = FormFields(text_fields=frozenset({"name"}), file_fields=frozenset({"file"}))
BODY = (
    b'--cut\r\nContent-Disposition: form-data; name="name"\r\n\r\npets\r\n'
    b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    b"some rows\r\n--cut--\r\n"
)


def request(chunks: list[bytes], boundary: str = "cut") -> Request:
    """Make a request that sends its body in these pieces."""
    messages = iter([*chunks, b""])

    async def receive() -> Message:
        body = next(messages)
        return {"type": "http.request", "body": body, "more_body": body != b""}

    kind = f"multipart/form-data; boundary={boundary}".encode()
    scope = {"type": "http", "headers": [(b"content-type", kind)]}
    return Request(scope, receive)


def receive(folder: Path, chunks: list[bytes]) -> tuple[UploadedForm, bytes]:
    async def go() -> tuple[UploadedForm, bytes]:
        async with receive_form(request(chunks), folder, NAMES) as form:
            return form, form.files["file"].path.read_bytes()

    return asyncio.run(go())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunk_size_does_not_affect_parsed_form(tmp_path: Path, size: int) -> None:
    chunks = [BODY[i : i + size] for i in range(0, len(BODY), size)]

    form, content = receive(tmp_path, chunks)

    assert (form.fields, form.files["file"].filename, content) == (
        {"name": "pets"},
        "a.csv",
        b"some rows",
    )
    assert form.files["file"].sha256 == hashlib.sha256(b"some rows").hexdigest()


def test_unmoved_upload_is_deleted(tmp_path: Path) -> None:
    receive(tmp_path, [BODY])

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (BODY[:-10], "The upload is incomplete."),
        (b"", "The upload is incomplete."),
        (b"no form at all", "Could not read the upload."),
        (BODY.replace(b'"name"', b'"role"'), "Unknown field: role."),
        (BODY.replace(b'"file"', b'"picture"'), "Unexpected file in field picture."),
        (BODY.replace(b"pets", b"pets" * 3000), "This value is too long."),
    ],
)
def test_invalid_form_is_rejected_and_leaves_no_files(
    tmp_path: Path, body: bytes, message: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        receive(tmp_path, [body])

    assert refused.value.message == message
    assert list(tmp_path.iterdir()) == []


def test_full_disk_error_is_raised_after_reading_whole_request(tmp_path: Path) -> None:
    # A real full disk: whatever is written to this device does not fit.
    (tmp_path / "file").symlink_to("/dev/full")
    head, tail = BODY[:-12], BODY[-12:]
    heard: list[bytes] = []
    asked = request([head, *[b"x" * 2**20] * 3, tail])
    stream = asked._receive

    async def receive() -> Message:
        message = await stream()
        heard.append(message["body"])
        return message

    writer = _FormWriter(tmp_path, NAMES)
    with pytest.raises(DiskFullError):
        asyncio.run(_feed_parser(Request(asked.scope, receive), writer))
    writer.discard_open_file()

    assert heard[-2] == tail
