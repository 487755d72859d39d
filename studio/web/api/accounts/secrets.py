"""REST routes of secrets: which are set and by whom. Their values are never returned."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field, SecretStr

from studio.services.accounts import secrets
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Out
from studio.web.auth.identity import CurrentIdentity
from studio.web.http.deps import DB, Config

router = APIRouter(route_class=ApiRoute, prefix="/api/v1", tags=["secrets"])

Name = Literal[
    "hub_token",
    "s3_key",
    "s3_secret",
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


@router.get("/secrets")
def listing(db: DB, config: Config) -> SecretsOut:
    """List which secrets are set. Their values are never returned."""
    states = secrets.list_secrets(db, config)
    return SecretsOut(data=[SecretOut.model_validate(state) for state in states])


@router.put("/secrets/{name}", status_code=204)
def keep(name: Name, body: NewSecret, db: DB, config: Config, who: CurrentIdentity) -> None:
    """Set or replace a secret. It takes effect immediately."""
    secrets.store(db, config, name, body.value.get_secret_value(), who.name)


@router.delete("/secrets/{name}", status_code=204)
def forget(name: Name, db: DB) -> None:
    """Delete a secret that was set here."""
    secrets.delete(db, name)
