"""Large files in parts, in the way of tus 1.0: begun, sent, asked after, gone on with, dropped."""

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
    """In bytes, all of it."""


class UploadOut(Out):
    id: str
    filename: str
    size: int
    offset: int
    """How much of it is here: what is sent next begins there."""


@router.post("", status_code=201)
def begin(new: NewUpload, config: Config, response: Response) -> UploadOut:
    """Announce a file. What a day has not finished is forgotten."""
    made = uploads.create(config.uploads, new.filename, new.size, config.upload_limit_bytes)
    response.headers["Location"] = f"/api/v1/uploads/{made.id}"
    return UploadOut.model_validate(made)


@router.head("/{upload}", status_code=204)
def offset(upload: str, config: Config) -> Response:
    """Ask how far a file has come: `Upload-Offset`."""
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
    """Send the next bytes, from `Upload-Offset` on. What came before a cut is kept."""
    with uploads.open_writer(config.uploads, upload, upload_offset) as writer:
        waiting = bytearray()
        try:
            async for chunk in request.stream():
                waiting += chunk
                if len(waiting) >= _CHUNK_BYTES:
                    await run_in_threadpool(writer.write, bytes(waiting))
                    waiting.clear()
        except ClientDisconnect:
            pass  # Nobody hears an answer; whoever comes back asks how far it is.
        await run_in_threadpool(writer.write, bytes(waiting))
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
