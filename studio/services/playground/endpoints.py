"""The endpoints that can be asked in the playground: those of the operator, and the judge's."""

from sqlmodel import Session

from studio.errors import NotFoundError
from studio.protocols import chat_endpoints
from studio.protocols.chat_endpoints import ChatEndpoint
from studio.services.accounts import secrets
from studio.settings import Settings


def list_endpoints(db: Session, settings: Settings) -> list[ChatEndpoint]:
    """Return the endpoints with their keys.

    Raises:
        InvalidError: The setting is malformed.
        UnavailableError: It is stored and cannot be decrypted.

    """
    known = secrets.settings_with_required(db, settings, ("endpoints", "judge_key"))
    return chat_endpoints.list_configured(known)


def get(db: Session, settings: Settings, name: str) -> ChatEndpoint:
    """Return the endpoint of a name.

    Raises:
        NotFoundError: There is none.

    """
    for endpoint in list_endpoints(db, settings):
        if endpoint.name == name:
            return endpoint
    raise NotFoundError(
        f"There is no endpoint named {name}.",
        hint="Choose another model, or ask an administrator to set it up.",
    )
