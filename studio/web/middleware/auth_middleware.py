"""The door: who comes, whether they may, and what is written down of it.

A plain ASGI layer, because Starlette's middleware class disturbs the ending of event streams. It
stands before the router, so that nothing a stranger sends is read.
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
from studio.services.runs import base_model_check
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
"""How often a live stream asks whether its viewer may still look; less than between heartbeats."""

_SIGN_IN_HINTS = {
    "link": "`studio link` prints a link for your browser. Programs show the token in the "
    "file api_token of the studio's folder: Authorization: Bearer <token>.",
    "accounts": "Sign in, or show a token of yours: Authorization: Bearer <token>.",
}

_PERMISSION_NAMES = {
    Permission.OWN: "speak for oneself",
    Permission.READ: "look",
    Permission.SUBMIT: "begin something new",
    Permission.MANAGE: "change what is there",
    Permission.ADMIN: "administer the studio",
}


class AuthMiddleware:
    """Let those in who may, and write down what they change."""

    def __init__(self, app: ASGIApp, ways: RouteTable, settings: Settings) -> None:
        self.app = app
        self.ways = ways
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self.app(scope, receive, send)
            return
        visit = _AuthenticatedRequest(self.settings, scope, self.ways)
        refusal = await visit.refusal()
        try:
            if refusal is not None:
                await refusal(scope, receive, visit.noted(send))
            else:
                await visit.let_in(self.app, receive, send)
        finally:
            await visit.end()


class _AuthenticatedRequest:
    """One request, and who makes it."""

    def __init__(self, settings: Settings, scope: Scope, ways: RouteTable) -> None:
        self._settings = settings
        self._scope = scope
        self._ways = ways
        self._way = ways.of(scope["method"], scope["path"])
        self._engine: Engine = scope["app"].state.engine
        self._who: Identity | None = None
        self._status = 0

    async def refusal(self) -> Response | None:
        """Return what is answered at the door; None lets them in."""
        try:
            self._who = await self._recognised()
            self._scope.setdefault("state", {})["who"] = self._who
            await self._check()
        except UnauthorizedError as error:
            return self._turned_away(error)
        except StudioError as error:
            with template_permissions.rendering_for(self._who, self._ways):
                return errors.error_response(Request(self._scope), error)
        return None

    async def let_in(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        known = self._who or identity.LOCAL_IDENTITY
        state = self._scope["app"].state
        pause: float = state.look_again_seconds
        watched = _RevocableStream(self.noted(send), self._still_holds, pause)
        try:
            with (
                acting_as(known.actor),
                template_permissions.rendering_for(self._who, self._ways),
                base_model_check.enable_hub_checks(self._settings, state.hub_answers),
            ):
                await app(self._scope, receive, watched.send)
        except (ClientDisconnect, OSError, ExceptionGroup):
            # However many layers have wrapped it by now: we have ended it ourselves.
            if not watched.is_over:
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def noted(self, send: Send) -> Send:
        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        return note

    async def end(self) -> None:
        """Write down what there is to be, once the answer has left."""
        deed = self._deed()
        try:
            if self._who is not None and self._who.is_due:
                await run_in_threadpool(identity.record_seen, self._engine, self._who)
            if deed is not None:
                await run_in_threadpool(_save_audit_entry, self._engine, deed)
        except StudioError as error:
            # The answer has left: what it says was done, whether it could be written down or not.
            log.warning("deed_lost", extra={"reason": error.message})

    async def _recognised(self) -> Identity | None:
        if self._settings.sign_in == "none":
            return identity.LOCAL_IDENTITY
        return await run_in_threadpool(
            identity.identify, self._engine, self._settings, dict(self._scope)
        )

    async def _check(self) -> None:
        asks = self._way.asks
        if asks is Permission.OPEN:
            return
        if self._who is None:
            raise UnauthorizedError(
                "This studio does not know who you are.",
                hint=_SIGN_IN_HINTS[self._settings.sign_in],
            )
        if not self._who.may(asks):
            raise ForbiddenError(
                f"This needs the right to {_PERMISSION_NAMES[asks]}, "
                f"which {self._who.name} has not.",
                hint="An administrator can give it; a token has only what it was made with.",
            )
        if asks is Permission.MANAGE and self._who.actor.is_limited and self._way.noun:
            await run_in_threadpool(self._check_owner)

    def _check_owner(self) -> None:
        named = next(iter(self._way.subject(self._scope["path"]).values()), "")
        # What is no number, the route refuses by itself.
        if self._who is not None and named.isdecimal():
            with acting_as(self._who.actor), read_session(self._engine) as db:
                owners.require(db, self._way.noun, [int(named)])

    def _turned_away(self, error: UnauthorizedError) -> Response:
        """Show programs how to prove who they are, and send people to where they can."""
        request = Request(self._scope)
        shows_token = bool(identity.header(self._scope, b"authorization"))
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
        there = sign_in_url(f"{here}?{query}" if query else here) if is_shown else "/login"
        return RedirectResponse(there, 303)

    def _deed(self) -> AuditEntry | None:
        """Return what is to be written down: each change, and each try to sign in."""
        asks, method = self._way.asks, self._scope["method"]
        known = self._scope.get("state", {}).get("deed") or (self._who and self._who.name)
        if method in SAFE_METHODS and "deed" not in self._scope.get("state", {}):
            return None
        if self._settings.sign_in == "none" or not known or not self._way.template:
            return None
        if asks is Permission.READ:
            return None
        found = self._way.subject(self._scope["path"])
        return AuditEntry(
            who=known,
            method=method,
            route=self._way.template,
            subject=", ".join(f"{name}={value}"[:100] for name, value in found.items()),
            permission=asks.value,
            status=self._status or 500,
            address=identity.client_address(self._scope),
        )

    async def _still_holds(self) -> bool:
        """Whether who was let in would be again."""
        if self._way.asks is Permission.OPEN or self._settings.sign_in == "none":
            return True
        now = await self._recognised()
        return now is not None and now.may(self._way.asks)


class _AccessRevokedError(OSError):
    """Ends a stream as a viewer does who leaves."""


class _RevocableStream:
    """What is sent to a visitor; a stream ends once they may look no more."""

    def __init__(
        self, send: Send, still_holds: Callable[[], Awaitable[bool]], pause: float
    ) -> None:
        self._pause = pause
        self._send = send
        self._still_holds = still_holds
        self._is_stream = False
        self._looked = time.monotonic()
        self.is_over = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_stream = is_event_stream(message.get("headers", []))
        elif self._is_stream and time.monotonic() - self._looked > self._pause:
            self._looked = time.monotonic()
            if not await self._still_holds():
                self.is_over = True
                raise _AccessRevokedError
        await self._send(message)


def sign_in_url(there: str) -> str:
    return "/login" if there == "/" else f"/login?next={quote(there, safe='/')}"


def is_api_path(path: str) -> bool:
    return path.startswith(("/api/", "/v1/")) or path in {"/metrics", "/openapi.json"}


def _save_audit_entry(engine: Engine, deed: AuditEntry) -> None:
    with unit_of_work(engine) as db:
        audit_log.record(db, deed)
