"""What holds for every call of the API: no unknown field in its address, and made only once."""

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from studio.schemas.validation_errors import accepts_list
from studio.web.http import idempotency

CREATED, ACCEPTED = 201, 202

NEVER_STORED = {"x-never-kept": True}
"""`openapi_extra` of a route whose answer holds a secret: no Idempotency-Key keeps it."""


class ApiRoute(APIRoute):
    """A route of the API."""

    @property
    def creates_resource(self) -> bool:
        """Whether it makes something, and may be sent again under an Idempotency-Key."""
        makes = "POST" in (self.methods or ()) and self.status_code in {CREATED, ACCEPTED}
        return makes and self.openapi_extra != NEVER_STORED

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = {one.alias: accepts_list(one.field_info) for one in get_flat_params(self.dependant)}

        async def answer(request: Request) -> Response:
            _check_query(request, known)
            if self.creates_resource:
                return await idempotency.respond_once(request, handle)
            return await handle(request)

        return answer


def _check_query(request: Request, known: Mapping[str, bool]) -> None:
    """Refuse a misspelt filter, and one given twice: a script would get others than it asked for.

    `known` tells of each name whether it may be given several times.
    """
    counts = Counter(name for name, _value in request.query_params.multi_items())
    unknown = [_query_error("extra_forbidden", name) for name in counts if name not in known]
    twice = [
        _query_error("given_twice", name)
        for name, count in counts.items()
        if count > 1 and not known.get(name, True)
    ]
    if unknown or twice:
        raise RequestValidationError(unknown + twice)


def _query_error(kind: str, name: str) -> dict[str, Any]:
    message = "It is given more than once; give one value."
    return {"type": kind, "loc": ("query", name), "msg": message, "input": None}
