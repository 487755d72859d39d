"""Checks before every request: proxies, allowed hosts, same origin, size; and security headers.

Pure ASGI middleware, because Starlette's `BaseHTTPMiddleware` interferes with how event streams
end. Paths are read from the scope: a malicious Host header can falsify `request.url`
(CVE-2026-48710).
"""

import re
from collections.abc import Iterable
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from studio.errors import InvalidError, StudioError
from studio.settings import Settings
from studio.web.auth.security_headers import SAFE_METHODS, SECURITY_HEADERS
from studio.web.http import error_pages, errors
from studio.web.http.errors import error_body
from studio.web.i18n import locale

FORWARDED_FOR, FORWARDED_PROTO = b"x-forwarded-for", b"x-forwarded-proto"


class ProxyHeadersMiddleware:
    """Apply the headers of trusted proxies: client address, scheme and user name.

    Headers of others are ignored: otherwise any client could claim any name.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.header = settings.proxy_user_header.lower().encode()
        try:
            proxies = settings.trusted_proxies.split(",")
            self.networks = [ip_network(proxy.strip()) for proxy in proxies if proxy.strip()]
        except ValueError as error:
            raise InvalidError(
                f"STUDIO_TRUSTED_PROXIES contains an invalid address: {error}.",
                hint="Use addresses or networks, such as 127.0.0.1,10.0.0.0/8",
            ) from error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_trusted((scope.get("client") or ("",))[0]):
            scope = self._apply_headers(scope)
        await self.app(scope, receive, send)

    def _apply_headers(self, scope: Scope) -> Scope:
        headers = dict(scope["headers"])
        updated = {**scope, "state": {**scope.get("state", {})}}
        proto = headers.get(FORWARDED_PROTO, b"").decode("latin-1")
        if proto in {"http", "https"}:
            updated["scheme"] = proto
        if client := self._client_address(headers.get(FORWARDED_FOR, b"").decode("latin-1")):
            updated["client"] = (client, 0)
        if self.header and (name := headers.get(self.header, b"").decode("utf-8", "replace")):
            updated["state"]["named_by_proxy"] = name.strip().lower()
        return updated

    def _client_address(self, chain: str) -> str:
        """Return the last address that is not a trusted proxy: clients can forge those before."""
        hops = [hop.strip() for hop in chain.split(",") if hop.strip()]
        return next((hop for hop in reversed(hops) if not self._is_trusted(hop)), "")

    def _is_trusted(self, address: str) -> bool:
        try:
            client = ip_address(address)
        except ValueError:
            return False
        return any(client in network for network in self.networks)


_RAW_SECURITY_HEADERS = [
    (name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()
]
BODY_LIMIT = 4 * 2**20
"""Recipes, notes and forms are far smaller; only uploads may be larger."""

HEADERS_LIMIT = 32 * 2**10
"""Total size of a request's headers; the server does not limit headers that arrive at once."""

_OTHER_HOST_TEXTS = (
    "This studio has a different address.",
    (
        "Open the address it printed when it started. To use another host name, add it to "
        "STUDIO_ALLOWED_HOSTS."
    ),
)
_UPLOAD_PATHS = frozenset({"/datasets", "/api/v1/datasets", "/v1/files"})
_QUESTION_PATHS = re.compile(
    r"/v1/chat/completions|/runs/\d+/chat/(answers|scores)|/playground/(answers|scores|code)"
)
"""What models are asked, maybe with images."""


class RequestGuard:
    """Reject unknown hosts, cross-site writes and oversized bodies; add security headers."""

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str], upload_limit: int, image_limit: int
    ) -> None:
        """`image_limit` is the size of all images that one question to a model may have."""
        self.app = app
        self.hosts = frozenset(hosts)
        self.upload_limit = upload_limit
        self.question_limit = BODY_LIMIT + image_limit * 4 // 3  # in base64

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self._limit(scope)
        refusal = self._refusal(scope, limit)
        if refusal is not None:
            await refusal(scope, receive, _with_security_headers(send))
            return
        await self.app(scope, _limited_receive(receive, limit), _with_security_headers(send))

    def _refusal(self, scope: Scope, limit: int) -> Response | None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or _hostname(hosts[0]) not in self.hosts:
            return _refuse(scope, HTTPStatus.MISDIRECTED_REQUEST, *_OTHER_HOST_TEXTS)
        if scope["method"] not in SAFE_METHODS and not _is_same_origin(scope, hosts[0]):
            message = "Cross-site requests may not change anything."
            hint = "Open the studio itself, and press the button there."
            return _refuse(scope, HTTPStatus.FORBIDDEN, message, hint)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADERS_LIMIT:
            message, hint = "The request headers are too large.", "Delete this site's cookies."
            return _refuse(scope, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, hint)
        length = (Headers(scope=scope).getlist("content-length") or ["0"])[0]
        if length.isdecimal() and int(length) > limit:
            return _refuse(scope, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, *errors.TOO_LARGE_TEXTS)
        return None

    def _limit(self, scope: Scope) -> int:
        path = scope["path"].rstrip("/")
        is_upload = path in _UPLOAD_PATHS or path.startswith("/api/v1/uploads/")
        is_json = Headers(scope=scope).getlist("content-type")[:1] == ["application/json"]
        if is_json and _QUESTION_PATHS.fullmatch(path):
            return self.question_limit
        return self.upload_limit if is_upload and not is_json else BODY_LIMIT


def _refuse(scope: Scope, status: HTTPStatus, message: str, hint: str) -> Response:
    error = StudioError(message, hint=hint)
    error.code = status.name.lower()
    headers = {"Connection": "close"}
    if errors.is_openai_path(scope["path"]):
        return errors.openai_error_response(error, status, headers)
    request = Request(scope)
    is_browser = "text/html" in request.headers.get("accept", "")
    if scope["path"].startswith("/api/") or not is_browser:
        return JSONResponse(error_body(error), status, headers=headers)
    # The middleware that sets the language comes after this one.
    locale.set_language(locale.choose_language(request.headers))
    response = error_pages.plain_error_page(request, error, status)
    response.headers.update(headers)
    return response


def _is_same_origin(scope: Scope, host: str) -> bool:
    """Whether an unsafe request comes from one of our pages, or from a program.

    Browsers send the site that a request comes from; programs send neither header.
    """
    site = Headers(scope=scope).getlist("sec-fetch-site")
    if site:
        return site[0] in {"same-origin", "none"}
    origin = Headers(scope=scope).getlist("origin")
    return not origin or urlsplit(origin[0]).netloc.lower() == host.lower()


def _hostname(host: str) -> str:
    """Return the name in a Host header in lower case, without the port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def _limited_receive(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def count() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            # The only exception that FastAPI passes through while it reads a body.
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return message

    return count


def _with_security_headers(send: Send) -> Send:
    async def guard(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            own = {name.lower() for name, _value in headers}
            # A response may have a policy of its own: two policies would both apply.
            missing = [pair for pair in _RAW_SECURITY_HEADERS if pair[0] not in own]
            message["headers"] = [*headers, *missing]
        await send(message)

    return guard
