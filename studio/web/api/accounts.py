"""REST routes of accounts, of the caller's own tokens, and of secrets."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field, SecretStr

from studio.db.accounts import Account, Role, Scope
from studio.services.accounts import accounts, api_tokens, secrets
from studio.web.accounts import accounts_page
from studio.web.api.conventions import NEVER_STORED, ApiRoute, Body, Id, Name, Out
from studio.web.auth.identity import CurrentIdentity
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/accounts", tags=["accounts"])


class NewAccount(Body):
    name: Name
    """The name to sign in with."""
    role: Role = Role.MEMBER


class ChangedAccount(Body):
    role: Role


class AccountOut(Out):
    id: int
    name: str
    role: Role
    created_at: datetime


class InvitedAccountOut(AccountOut):
    link: str
    """A link to choose a password. It works once, within a day."""


class AccountsOut(Out):
    data: list[AccountOut]


@router.get("")
def listing(db: DB) -> AccountsOut:
    """List the accounts by name."""
    return AccountsOut(
        data=[AccountOut.model_validate(account) for account in accounts.list_all(db)]
    )


@router.post("", status_code=201, openapi_extra=NEVER_STORED)
def add(new: NewAccount, request: Request, db: DB) -> InvitedAccountOut:
    """Add an account, with a link to choose its password."""
    return _invited(request, db, accounts.add(db, new.name, new.role))


@router.post("/{account_id}/link")
def link(account_id: Id, request: Request, db: DB) -> InvitedAccountOut:
    """Create a link to choose a new password; the previous link stops working."""
    return _invited(request, db, accounts.get(db, account_id))


@router.patch("/{account_id}")
def change(account_id: Id, changed: ChangedAccount, db: DB) -> AccountOut:
    """Change the role of an account. The last administrator cannot be demoted."""
    account = accounts.get(db, account_id)
    accounts.change_role(db, account, changed.role)
    return AccountOut.model_validate(account)


@router.delete("/{account_id}", status_code=204)
def remove(account_id: Id, db: DB) -> None:
    """Remove an account; what it owns becomes everyone's."""
    accounts.remove(db, accounts.get(db, account_id))


def _invited(request: Request, db: DB, account: Account) -> InvitedAccountOut:
    fields = AccountOut.model_validate(account).model_dump()
    return InvitedAccountOut(**fields, link=accounts_page.create_link(request, db, account))


tokens_router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["tokens"])


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


@tokens_router.get("/tokens", name="listing")
def list_tokens(db: DB, who: CurrentIdentity) -> TokensOut:
    """List your tokens, newest first."""
    tokens = api_tokens.list_tokens(db, who.account_id)
    return TokensOut(data=[TokenOut.model_validate(token) for token in tokens])


@tokens_router.post("/tokens", status_code=201, openapi_extra=NEVER_STORED)
def make(body: NewToken, db: DB, who: CurrentIdentity) -> NewTokenOut:
    """Create a token. It cannot have more permissions than you have."""
    token_request = api_tokens.TokenRequest(body.name, Scope(body.scope), body.days)
    token, secret = api_tokens.create(db, token_request, who.account_id, who.max_scope)
    return NewTokenOut(**TokenOut.model_validate(token).model_dump(), token=secret)


@tokens_router.delete("/tokens/{number}", status_code=204)
def revoke(number: Id, db: DB, who: CurrentIdentity) -> None:
    """Revoke a token immediately; live streams that it opened are closed."""
    api_tokens.revoke(db, number, who.account_id)


secrets_router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["secrets"])

SecretName = Literal[
    "hub_token",
    "s3_key",
    "s3_secret",
    "judge_key",
    "endpoints",
    "webhook_url",
    "webhook_secret",
    "smtp_url",
    "oidc_client_secret",
]


class NewSecret(Body):
    value: Annotated[SecretStr, Field(min_length=1, max_length=secrets.MAX_LENGTH)]
    """The value; it is never returned."""


class SecretOut(Out):
    name: str
    """The name of the setting in lower case: `hub_token` for `STUDIO_HUB_TOKEN`."""
    title: str
    from_environment: bool
    """Whether it is set in the environment, which takes precedence over the value set here."""
    set_at: datetime | None
    """When it was set here; null if it was not."""
    set_by: str
    trouble: str
    """Why the value set here cannot be used; empty if it can."""


class SecretsOut(Out):
    data: list[SecretOut]


@secrets_router.get("/secrets", name="listing")
def list_secrets(db: DB, config: Config) -> SecretsOut:
    """List which secrets are set. Their values are never returned."""
    states = secrets.list_secrets(db, config)
    return SecretsOut(data=[SecretOut.model_validate(state) for state in states])


@secrets_router.put("/secrets/{name}", status_code=204)
def keep(name: SecretName, body: NewSecret, db: DB, config: Config, who: CurrentIdentity) -> None:
    """Set or replace a secret. It takes effect immediately."""
    secrets.store(db, config, name, body.value.get_secret_value(), who.name)


@secrets_router.delete("/secrets/{name}", status_code=204)
def forget(name: SecretName, db: DB) -> None:
    """Delete a secret that was set here."""
    secrets.delete(db, name)
