"""Serve static files: URLs with a content hash are cached forever, others revalidated."""

from http import HTTPStatus

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from studio.web.rendering import css_bundle, static_files
from studio.web.rendering.static_files import StaticFile, StaticFolder

_IMMUTABLE = "public, max-age=31536000, immutable"


class CachedStaticFiles:
    def __init__(self, folder: StaticFolder | None = None) -> None:
        self._static_folder = folder or static_files.shared_folder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        name = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        file = (
            css_bundle.bundle_file()
            if name == css_bundle.BUNDLE_NAME
            else self._static_folder.find(name)
        )
        if file is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        await _response(file, scope)(scope, receive, send)


def _response(file: StaticFile, scope: Scope) -> Response:
    request_headers = Headers(scope=scope)
    hashed = scope["query_string"].startswith(b"v=")
    headers = {
        "Cache-Control": _IMMUTABLE if hashed else "no-cache",
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    known_etags = {tag.strip() for tag in request_headers.get("if-none-match", "").split(",")}
    if {file.etag, "*"} & known_etags:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    content = file.content
    if file.gzipped and "gzip" in request_headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = file.gzipped, "gzip"
    return Response(content, headers=headers, media_type=file.media_type)
