"""Static files: those asked for by content hash are kept for ever, others are checked each time."""

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from studio import paths
from studio.web import sheets

_YEAR = "public, max-age=31536000, immutable"


class Kept(StaticFiles):
    def __init__(self) -> None:
        super().__init__(directory=paths.static())

    async def get_response(self, path: str, scope: Scope) -> Response:
        if path == sheets.NAME:
            response = Response(sheets.joined(), media_type="text/css")
        else:
            response = await super().get_response(path, scope)
        hashed = scope["query_string"].startswith(b"v=")
        response.headers["Cache-Control"] = _YEAR if hashed else "no-cache"
        return response
