"""Authentication, authorization and the audit log.

Pure ASGI middleware, because Starlette's `BaseHTTPMiddleware` interferes with how event streams
end. It runs before the router, so that no body of an unauthenticated request is read.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

from fastapi import Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from studio.db.accounts import AuditEntry
from studio.db.owners import acting_as
from studio.db.session import read_session, unit_of_work
from studio.errors import ForbiddenError, StudioError, UnauthorizedError
from studio.services.accounts import audit_log, owners
from studio.services.runs import hub_access
from studio.settings import Settings
from studio.web.auth import identity, template_permissions
from studio.web.auth.identity import Identity
from studio.web.auth.permissions import Permission
from studio.web.auth.route_table import RouteTable
from studio.web.auth.security_headers import SAFE_METHODS
from studio.web.http import errors
from studio.web.middleware.request_metrics import is_event_stream
from studio.web.rendering import render

log = logging.getLogger(__name__)

RECHECK_SECONDS = 10.0
"""How often a live stream checks that its viewer is still authorized; less than the heartbeat."""

_WORKER_ROUTES = "/api/v1/workers/{worker}/"

_SIGN_IN_HINTS = {
    "link": "`studio link` prints a sign-in link for your browser. Programs send the token in the "
    "file api_token of the studio's folder: Authorization: Bearer <token>.",
    "accounts": "Sign in, or send one of your tokens: Authorization: Bearer <token>.",
}

_PERMISSION_NAMES = {
    Permission.OWN: "manage your own account",
    Permission.READ: "view",
    Permission.SUBMIT: "start new work",
    Permission.MANAGE: "change existing items",
    Permission.ADMIN: "administer the studio",
}


class AuthMiddleware:
    """Let authorized requests through, and record changes in the audit log."""

    def __init__(self, app: ASGIApp, ways: RouteTable, settings: Settings) -> None:
        self.app = app
        self.routes = ways
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self.app(scope, receive, send)
            return
        authenticated = _AuthenticatedRequest(self.settings, scope, self.routes)
        refusal = await authenticated.check()
        try:
            if refusal is not None:
                await refusal(scope, receive, authenticated.recording_status(send))
            else:
                await authenticated.forward(self.app, receive, send)
        finally:
            await authenticated.finish()


class _AuthenticatedRequest:
    """One request and its caller."""

    def __init__(self, settings: Settings, scope: Scope, ways: RouteTable) -> None:
        self._settings = settings
        self._scope = scope
        self._routes = ways
        self._route = ways.find(scope["method"], scope["path"])
        self._engine: Engine = scope["app"].state.engine
        self._identity: Identity | None = None
        self._status = 0

    async def check(self) -> Response | None:
        """Return the response that rejects the request; None lets it through."""
        try:
            self._identity = await self._identify()
            self._scope.setdefault("state", {})["who"] = self._identity
            await self._authorize()
        except UnauthorizedError as error:
            return self._sign_in_response(error)
        except StudioError as error:
            with template_permissions.rendering_for(self._identity, self._routes):
                return errors.error_response(Request(self._scope), error)
        return None

    async def forward(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        caller = self._identity or identity.LOCAL_IDENTITY
        state = self._scope["app"].state
        interval: float = state.look_again_seconds
        revocable = _RevocableStream(
            self.recording_status(send), self._is_still_authorized, interval
        )
        try:
            with (
                acting_as(caller.actor),
                template_permissions.rendering_for(self._identity, self._routes),
                hub_access.enable_hub_checks(self._settings, state.hub_answers),
            ):
                await app(self._scope, receive, revocable.send)
        except (ClientDisconnect, OSError, ExceptionGroup):
            # We ended the stream ourselves, however many layers have wrapped the error by now.
            if not revocable.is_revoked:
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def recording_status(self, send: Send) -> Send:
        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        return note

    async def finish(self) -> None:
        """Record the audit entry and the last use, once the response has been sent."""
        entry = self._audit_entry()
        try:
            if self._identity is not None and self._identity.should_record_seen:
                await run_in_threadpool(identity.record_seen, self._engine, self._identity)
            if entry is not None:
                await run_in_threadpool(_save_audit_entry, self._engine, entry)
        except StudioError as error:
            # The response has been sent: the change stands, even if it could not be recorded.
            log.warning("deed_lost", extra={"reason": error.message})

    async def _identify(self) -> Identity | None:
        if self._settings.sign_in == "none":
            return identity.LOCAL_IDENTITY
        return await run_in_threadpool(
            identity.identify, self._engine, self._settings, dict(self._scope)
        )

    async def _authorize(self) -> None:
        required = self._route.permission
        if required is Permission.OPEN:
            return
        if self._identity is None:
            raise UnauthorizedError(
                "You are not signed in.",
                hint=_SIGN_IN_HINTS[self._settings.sign_in],
            )
        if not self._identity.may(required):
            raise ForbiddenError(
                f"This needs the permission to {_PERMISSION_NAMES[required]}, "
                f"which {self._identity.name} does not have.",
                hint="An administrator can grant it; a token only has its own scope.",
            )
        if (
            required is Permission.MANAGE
            and self._identity.actor.is_limited
            and self._route.owned_noun
        ):
            await run_in_threadpool(self._check_owner)

    def _check_owner(self) -> None:
        row_id = next(iter(self._route.path_parameters(self._scope["path"]).values()), "")
        # The route itself rejects an id that is not a number.
        if self._identity is not None and row_id.isdecimal():
            with acting_as(self._identity.actor), read_session(self._engine) as db:
                owners.require(db, self._route.owned_noun, [int(row_id)])

    def _sign_in_response(self, error: UnauthorizedError) -> Response:
        """Tell API clients how to authenticate, and redirect browsers to the sign-in page."""
        request = Request(self._scope)
        shows_token = bool(request.headers.get("authorization"))
        if shows_token or is_api_path(self._scope["path"]):
            return errors.error_response(request, error)
        if render.wants_fragment(request):
            here = urlsplit(request.headers.get("HX-Current-URL", "")).path or "/"
            return Response(status_code=401, headers={"HX-Redirect": sign_in_url(here)})
        if self._settings.sign_in == "link":
            return render.page(request, "accounts/link.html", status=401, problem=None)
        here = self._scope["path"]
        query = self._scope["query_string"].decode("latin-1")
        is_shown = self._scope["method"] in SAFE_METHODS
        location = sign_in_url(f"{here}?{query}" if query else here) if is_shown else "/login"
        return RedirectResponse(location, 303)

    def _audit_entry(self) -> AuditEntry | None:
        """Return the audit entry of a change or a sign-in attempt; None for other requests."""
        required, method = self._route.permission, self._scope["method"]
        actor_name = self._scope.get("state", {}).get("actor_name") or (
            self._identity and self._identity.name
        )
        if method in SAFE_METHODS and "actor_name" not in self._scope.get("state", {}):
            return None
        if self._settings.sign_in == "none" or not actor_name or not self._route.template:
            return None
        if required is Permission.READ or self._is_worker_call():
            return None
        parameters = self._route.path_parameters(self._scope["path"])
        return AuditEntry(
            who=actor_name,
            method=method,
            route=self._route.template,
            subject=", ".join(f"{name}={value}"[:100] for name, value in parameters.items()),
            permission=required.value,
            status=self._status or 500,
            address=identity.client_address(self._scope),
        )

    def _is_worker_call(self) -> bool:
        """Whether a worker on another machine reports, several times a second, and may do so."""
        is_worker = self._route.template.startswith(_WORKER_ROUTES)
        return is_worker and self._identity is not None and self._identity.may(Permission.ADMIN)

    async def _is_still_authorized(self) -> bool:
        """Whether the caller is still authorized."""
        if self._route.permission is Permission.OPEN or self._settings.sign_in == "none":
            return True
        now = await self._identify()
        return now is not None and now.may(self._route.permission)


class _AccessRevokedError(OSError):
    """Ends a stream as a client's disconnect does."""


class _RevocableStream:
    """Sends a response; ends a stream once its viewer is no longer authorized."""

    def __init__(
        self, send: Send, still_holds: Callable[[], Awaitable[bool]], pause: float
    ) -> None:
        self._interval_seconds = pause
        self._send = send
        self._is_still_authorized = still_holds
        self._is_stream = False
        self._checked_at = time.monotonic()
        self.is_revoked = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_stream = is_event_stream(message.get("headers", []))
        elif self._is_stream and time.monotonic() - self._checked_at > self._interval_seconds:
            self._checked_at = time.monotonic()
            if not await self._is_still_authorized():
                self.is_revoked = True
                raise _AccessRevokedError
        await self._send(message)


def sign_in_url(there: str) -> str:
    return "/login" if there == "/" else f"/login?next={quote(there, safe='/')}"


def is_api_path(path: str) -> bool:
    return path.startswith(("/api/", "/v1/")) or path in {"/metrics", "/openapi.json"}


def _save_audit_entry(engine: Engine, entry: AuditEntry) -> None:
    with unit_of_work(engine) as db:
        audit_log.record(db, entry)
