"""What holds for every call of the API: no unknown field in its address, and made only once."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from studio.web import once

CREATED, ACCEPTED = 201, 202

NEVER_KEPT = {"x-never-kept": True}
"""`openapi_extra` of a route whose answer holds a secret: no Idempotency-Key keeps it."""


class Call(APIRoute):
    """A route of the API."""

    @property
    def is_making(self) -> bool:
        """Whether it makes something, and may be sent again under an Idempotency-Key."""
        makes = "POST" in (self.methods or ()) and self.status_code in {CREATED, ACCEPTED}
        return makes and self.openapi_extra != NEVER_KEPT

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = frozenset(one.alias for one in get_flat_params(self.dependant))

        async def answer(request: Request) -> Response:
            _refuse_unknown(request, known)
            if self.is_making:
                return await once.answered(request, handle)
            return await handle(request)

        return answer


def _refuse_unknown(request: Request, known: frozenset[str]) -> None:
    """Refuse a misspelt filter: without it, a script would get everything and not know."""
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise RequestValidationError(
            [{"loc": ("query", name), "msg": "There is no such field"} for name in unknown]
        )
