"""The route class of the REST API: strict query parameters and Idempotency-Key support."""

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
"""`openapi_extra` of a route whose response holds a secret: never stored for replay."""


class ApiRoute(APIRoute):
    """A route of the REST API."""

    @property
    def creates_resource(self) -> bool:
        """Whether the route creates something and honours an Idempotency-Key."""
        makes = "POST" in (self.methods or ()) and self.status_code in {CREATED, ACCEPTED}
        return makes and self.openapi_extra != NEVER_STORED

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        parameters = {
            parameter.alias: accepts_list(parameter.field_info)
            for parameter in get_flat_params(self.dependant)
        }

        async def answer(request: Request) -> Response:
            _check_query(request, parameters)
            if self.creates_resource:
                return await idempotency.respond_once(request, handle)
            return await handle(request)

        return answer


def _check_query(request: Request, parameters: Mapping[str, bool]) -> None:
    """Reject unknown and repeated query parameters: a script would get wrong rows unnoticed.

    `known` maps each parameter to whether it may be repeated.
    """
    counts = Counter(name for name, _value in request.query_params.multi_items())
    unknown = [_query_error("extra_forbidden", name) for name in counts if name not in parameters]
    repeated = [
        _query_error("given_twice", name)
        for name, count in counts.items()
        if count > 1 and not parameters.get(name, True)
    ]
    if unknown or repeated:
        raise RequestValidationError(unknown + repeated)


def _query_error(kind: str, name: str) -> dict[str, Any]:
    message = "Given more than once; send one value."
    return {"type": kind, "loc": ("query", name), "msg": message, "input": None}
