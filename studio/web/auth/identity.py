"""The identity of a caller, from the token, cookie or proxy header of a request."""

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from studio.db.accounts import Account, Role, Scope
from studio.db.column_types import now
from studio.db.owners import Actor
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import accounts, api_tokens, login_sessions
from studio.settings import Settings
from studio.web.auth.permissions import Permission

BEARER_PREFIX = "bearer "

AsgiScope = MutableMapping[str, Any]
"""The ASGI scope of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An authenticated caller."""

    name: str
    max_scope: Scope
    """The widest scope they have."""
    role: Role = Role.ADMINISTRATOR
    account_id: int | None = None
    session_id: int | None = None
    """The browser session."""
    token_id: int | None = None
    """The token that was sent."""
    should_record_seen: bool = False
    """Whether the last use of the session or token is due to be updated."""

    def may(self, asks: Permission | str) -> bool:
        if asks == Permission.OPEN:
            return True
        if asks == Permission.OWN:
            return self.token_id is None or self.max_scope is Scope.ADMIN
        return self.max_scope.includes(Scope(asks))

    @property
    def actor(self) -> Actor:
        return Actor(
            name=self.name,
            account_id=self.account_id,
            is_limited=self.role is not Role.ADMINISTRATOR,
        )


LOCAL_IDENTITY = Identity(name=Actor().name, max_scope=Scope.ADMIN)
"""The user of a studio without accounts, who may do everything."""


def identify(engine: Engine, settings: Settings, scope: AsgiScope) -> Identity | None:
    """Return the caller, or None. If a token is sent, a cookie is ignored."""
    if settings.sign_in == "none":
        return LOCAL_IDENTITY
    authorization = Headers(scope=scope).get("authorization", "")
    cookie = cookies(scope).get(cookie_name(scope), "")
    proxy_user = scope.get("state", {}).get("named_by_proxy", "")
    if proxy_user and not authorization and settings.sign_in == "accounts":
        return _by_proxy(engine, settings, proxy_user)
    if not (authorization or cookie):
        return None
    with read_session(engine) as db:
        return (
            _by_token(db, settings, authorization)
            if authorization
            else _by_cookie(db, settings, cookie)
        )


def record_seen(engine: Engine, who: Identity) -> None:
    """Update the last use of the caller's token or session."""
    with unit_of_work(engine) as db:
        if who.token_id is not None:
            api_tokens.touch(db, who.token_id)
        if who.session_id is not None:
            login_sessions.touch(db, who.session_id)


def _by_token(db: Session, settings: Settings, authorization: str) -> Identity | None:
    is_bearer = authorization[: len(BEARER_PREFIX)].lower() == BEARER_PREFIX
    token = api_tokens.find(db, authorization[len(BEARER_PREFIX) :].strip()) if is_bearer else None
    owner = _account_identity(db, settings, token.account_id) if token else None
    if token is None or owner is None:
        return None
    level = token.scope if owner.max_scope.includes(token.scope) else owner.max_scope
    is_due = token.used_at is None or token.used_at < now() - login_sessions.TOUCH_INTERVAL
    name = f"{owner.name}, by the token “{token.name}”"
    return replace(owner, name=name, max_scope=level, token_id=token.id, should_record_seen=is_due)


def _by_cookie(db: Session, settings: Settings, cookie: str) -> Identity | None:
    session = login_sessions.find(db, cookie)
    owner = _account_identity(db, settings, session.account_id) if session else None
    if session is None or owner is None:
        return None
    return replace(
        owner,
        session_id=session.id,
        should_record_seen=session.seen_at < now() - login_sessions.TOUCH_INTERVAL,
    )


def _by_proxy(engine: Engine, settings: Settings, name: str) -> Identity | None:
    """Return the user that a trusted proxy names; create an account if new people are allowed."""
    with read_session(engine) as db:
        existing = accounts.find(db, name)
        if existing is not None:
            return identity_of_account(existing)
    if not settings.new_people:
        return None
    with unit_of_work(engine) as db:
        account = accounts.find(db, name) or accounts.add(db, name, Role(settings.new_people))
        return identity_of_account(account)


def _account_identity(db: Session, settings: Settings, account_id: int | None) -> Identity | None:
    """Return the owner of a token or session: with accounts enabled, it must belong to one."""
    if account_id is None:
        return LOCAL_IDENTITY if settings.sign_in == "link" else None
    account = db.get(Account, account_id)
    return identity_of_account(account) if account is not None else None


def identity_of_account(account: Account) -> Identity:
    level = accounts.ROLE_SCOPES[account.role]
    return Identity(name=account.name, max_scope=level, role=account.role, account_id=account.id)


def cookie_name(scope: AsgiScope) -> str:
    """Return the name of the session cookie, with the port: a machine may run two studios."""
    _host, port = scope.get("server") or ("", 0)
    return f"{'__Host-' if is_secure(scope) else ''}studio_{port}"


def is_secure(scope: AsgiScope) -> bool:
    return bool(scope.get("scheme") == "https")


def cookies(scope: AsgiScope) -> dict[str, str]:
    return cookie_parser(Headers(scope=scope).get("cookie", ""))


def client_address(scope: AsgiScope) -> str:
    return (scope.get("client") or ("",))[0]


def _optional_identity(request: Request) -> Identity | None:
    caller: Identity | None = request.scope.get("state", {}).get("who")
    return caller


def require_identity(request: Request) -> Identity:
    """Return the caller of a route that requires authentication."""
    caller = _optional_identity(request)
    assert caller is not None  # noqa: S101 -- open routes use OptionalIdentity
    return caller


CurrentIdentity = Annotated[Identity, Depends(require_identity)]
OptionalIdentity = Annotated[Identity | None, Depends(_optional_identity)]
"""The caller, or None if not signed in."""
