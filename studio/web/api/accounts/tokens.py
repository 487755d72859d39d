"""REST routes of the caller's own tokens: list, create, revoke."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from studio.db.accounts import Scope
from studio.services.accounts import api_tokens
from studio.web.api.conventions.api_route import NEVER_STORED, ApiRoute
from studio.web.api.conventions.schemas import Body, Id, Out
from studio.web.auth.identity import CurrentIdentity
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["tokens"])


class NewToken(Body):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    """A name that says what the token is for."""
    scope: Literal["read", "submit", "manage", "admin"] = "read"
    """What it may do: read; submit (also start new work); manage (also change and delete existing
    items); admin (everything)."""
    days: Annotated[int, Field(ge=1, le=api_tokens.MAX_DAYS)] | None = 90
    """Days until it expires; null for no expiry."""


class TokenOut(Out):
    id: int
    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    """When it was last used, to the minute."""


class NewTokenOut(TokenOut):
    token: str
    """The token, to send as `Authorization: Bearer <token>`. It is shown only once."""


class TokensOut(Out):
    data: list[TokenOut]


@router.get("/tokens")
def listing(db: DB, who: CurrentIdentity) -> TokensOut:
    """List your tokens, newest first."""
    tokens = api_tokens.list_tokens(db, who.account_id)
    return TokensOut(data=[TokenOut.model_validate(token) for token in tokens])


@router.post("/tokens", status_code=201, openapi_extra=NEVER_STORED)
def make(body: NewToken, db: DB, who: CurrentIdentity) -> NewTokenOut:
    """Create a token. It cannot have more permissions than you have."""
    token_request = api_tokens.TokenRequest(body.name, Scope(body.scope), body.days)
    token, secret = api_tokens.create(db, token_request, who.account_id, who.max_scope)
    return NewTokenOut(**TokenOut.model_validate(token).model_dump(), token=secret)


@router.delete("/tokens/{number}", status_code=204)
def revoke(number: Id, db: DB, who: CurrentIdentity) -> None:
    """Revoke a token immediately; live streams that it opened are closed."""
    api_tokens.revoke(db, number, who.account_id)
