"""REST routes of chunked, resumable uploads, following tus 1.0."""

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from studio.services.datasets import uploads
from studio.services.datasets.uploads import PartialUpload
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Out
from studio.web.http.deps import Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/uploads", tags=["uploads"])

Offset = Annotated[int, Header(alias="Upload-Offset", ge=0)]

_CHUNK_BYTES = 2**20


class NewUpload(Body):
    filename: str
    size: int
    """Size of the whole file in bytes."""


class UploadOut(Out):
    id: str
    filename: str
    size: int
    offset: int
    """Bytes received so far: where the next chunk starts."""


@router.post("", status_code=201)
def begin(new: NewUpload, config: Config, response: Response) -> UploadOut:
    """Start an upload. It is deleted if it is not complete within a day."""
    upload = uploads.create(config.uploads, new.filename, new.size, config.upload_limit_bytes)
    response.headers["Location"] = f"/api/v1/uploads/{upload.id}"
    return UploadOut.model_validate(upload)


@router.head("/{upload}", status_code=204)
def offset(upload: str, config: Config) -> Response:
    """Return the bytes received so far as `Upload-Offset`."""
    return _offset_response(uploads.get(config.uploads, upload))


@router.get("/{upload}")
def show(upload: str, config: Config) -> UploadOut:
    return UploadOut.model_validate(uploads.get(config.uploads, upload))


@router.patch(
    "/{upload}",
    status_code=204,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/offset+octet-stream": {
                    "schema": {"type": "string", "format": "binary"}
                }
            },
        }
    },
)
async def send(request: Request, upload: str, upload_offset: Offset, config: Config) -> Response:
    """Send the next bytes, starting at `Upload-Offset`. Bytes before a disconnect are saved."""
    with uploads.open_writer(config.uploads, upload, upload_offset) as writer:
        buffer = bytearray()
        try:
            async for chunk in request.stream():
                buffer += chunk
                if len(buffer) >= _CHUNK_BYTES:
                    await run_in_threadpool(writer.write, bytes(buffer))
                    buffer.clear()
        except ClientDisconnect:
            pass  # The client cannot get a response; it asks for the offset when it resumes.
        await run_in_threadpool(writer.write, bytes(buffer))
    return _offset_response(await run_in_threadpool(uploads.get, config.uploads, upload))


@router.delete("/{upload}", status_code=204)
def drop(upload: str, config: Config) -> None:
    uploads.delete(config.uploads, upload)


def _offset_response(parts: PartialUpload) -> Response:
    headers = {
        "Upload-Offset": str(parts.offset),
        "Upload-Length": str(parts.size),
        "Tus-Resumable": "1.0.0",
        "Cache-Control": "no-store",
    }
    return Response(status_code=204, headers=headers)
