"""Secrets set by administrators on a page: encrypted at rest, never shown, used where needed.

The environment takes precedence. The key is a file beside the database, or STUDIO_SECRET_KEY, so
the database or a backup alone reveals nothing. If the key is missing or wrong, only work that needs
the secret fails, with a message on how to fix it.
"""

import base64
import hashlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr
from sqlalchemy import Engine
from sqlmodel import Session, select

from studio import redaction
from studio.db.accounts import Secret
from studio.db.column_types import now
from studio.db.session import read_session
from studio.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from studio.protocols import chat_endpoints
from studio.services.storage import locks
from studio.settings import SECRETS, Settings

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

log = logging.getLogger(__name__)

MAX_LENGTH = 4000
MIN_KEY_LENGTH = 32
"""Fewest characters of a key."""

TITLES = {
    "hub_token": "Hugging Face token",
    "s3_key": "S3 access key",
    "s3_secret": "S3 secret key",
    "judge_key": "Judge's API key",
    "endpoints": "Endpoints of the playground",
    "mlflow_key": "MLflow token or password",
    "wandb_key": "Weights & Biases API key",
    "webhook_url": "Webhook URL",
    "webhook_secret": "Webhook signing secret",
    "smtp_url": "Mail server URL",
    "oidc_client_secret": "OpenID Connect client secret",
}
"""Names shown to users; `studio.settings.SECRETS` lists the secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """What may be shown of a secret: never its value."""

    name: str
    title: str
    variable: str
    from_environment: bool
    set_at: datetime | None = None
    set_by: str = ""
    trouble: str = ""
    """Why a stored secret cannot be used."""


def store(db: Session, settings: Settings, name: str, value: str, who: str) -> None:
    """Encrypt and store a secret, replacing the previous value.

    Raises:
        ConflictError: The key that encrypts the other secrets is missing.
        InvalidError: The value is not valid.
        NotFoundError: There is no secret with this name.

    """
    _require_name(name)
    value = value.strip()
    if not value.isprintable() or not 0 < len(value) <= MAX_LENGTH:
        raise InvalidError(
            f"A secret is one line of at most {MAX_LENGTH} characters.",
            hint="Copy it again, without surrounding text.",
            param="value",
        )
    if name == "endpoints":
        chat_endpoints.parse(value)
    locked = lock(db, settings, name, value)
    db.merge(Secret(name=name, locked=locked, set_by=who, set_at=now()))


def lock(db: Session, settings: Settings, name: str, value: str) -> str:
    """Return a value encrypted, and redact it from now on; only under its name can it be read.

    Raises:
        ConflictError: The key that encrypts the other secrets is missing.

    """
    redaction.register_secrets([value])
    return _require_cipher(db, settings, name).encrypt(f"{name}\n{value}".encode()).decode()


def unlock(settings: Settings, name: str, title: str, locked: str) -> str:
    """Return a value that was encrypted under a name; `title` is what errors call it.

    Raises:
        UnavailableError: The key that encrypted it is missing, or another one.

    """
    from cryptography.fernet import InvalidToken  # noqa: PLC0415 -- heavy import

    cipher = _load_cipher(settings)
    if cipher is None:
        raise UnavailableError(
            f"{title}: its key, {settings.secret_file}, is missing.",
            hint="Restore the file, or remove this secret and set it again.",
        )
    try:
        found, _, value = cipher.decrypt(locked.encode()).decode().partition("\n")
    except (InvalidToken, UnicodeError):
        found, value = "", ""
    if found != name:
        raise UnavailableError(
            f"{title}: it was encrypted with a different key.",
            hint="Restore that key (secret_key, or STUDIO_SECRET_KEY), or set this secret again.",
        )
    redaction.register_secrets([value])
    return value


def delete(db: Session, name: str) -> None:
    """Delete a secret.

    Raises:
        NotFoundError: It is not set.

    """
    _require_name(name)
    row = db.get(Secret, name)
    if row is None:
        raise NotFoundError(
            f"{TITLES[name]}: not set here.",
            hint="Remove a secret set in the environment there.",
        )
    db.delete(row)


def list_secrets(db: Session, settings: Settings) -> list[SecretInfo]:
    """Return all secrets and where they come from, without values."""
    rows = {row.name: row for row in db.exec(select(Secret))}
    return [_secret_info(settings, name, rows.get(name)) for name in SECRETS]


def settings_with_secrets(db: Session, settings: Settings) -> Settings:
    """Return the settings with stored secrets, where the environment has none.

    Skip a secret that cannot be decrypted.
    """
    values = {}
    for row in _rows_not_in_environment(db, settings, SECRETS):
        try:
            values[row.name] = SecretStr(_decrypt(settings, row))
        except UnavailableError as error:
            log.warning("secret_unreadable", extra={"secret": row.name, "reason": error.message})
    redaction.register_secrets([settings.secret_value(name) for name in SECRETS])
    redaction.register_secrets([settings.secret_key.get_secret_value()])
    return settings.model_copy(update=values) if values else settings


def register_for_redaction(engine: Engine, settings: Settings) -> None:
    """Redact all current secrets from what this process logs and shows."""
    with read_session(engine) as db:
        settings_with_secrets(db, settings)


def settings_with_required(db: Session, settings: Settings, names: Iterable[str]) -> Settings:
    """Return the settings with these secrets, for work that needs them.

    Raises:
        UnavailableError: One is stored and cannot be decrypted.

    """
    values = {
        row.name: SecretStr(_decrypt(settings, row))
        for row in _rows_not_in_environment(db, settings, names)
    }
    return settings.model_copy(update=values) if values else settings


def _rows_not_in_environment(db: Session, settings: Settings, names: Iterable[str]) -> list[Secret]:
    """Return the stored secrets that the environment does not set."""
    missing = {name for name in names if not settings.secret_value(name)}
    return [row for row in db.exec(select(Secret)) if row.name in missing] if missing else []


def _secret_info(settings: Settings, name: str, row: Secret | None) -> SecretInfo:
    trouble = ""
    if row is not None:
        try:
            _decrypt(settings, row)
        except UnavailableError as error:
            trouble = f"{error.message} {error.hint}"
    return SecretInfo(
        name=name,
        title=TITLES[name],
        variable=f"STUDIO_{name.upper()}",
        from_environment=bool(settings.secret_value(name)),
        set_at=row.set_at if row else None,
        set_by=row.set_by if row else "",
        trouble=trouble,
    )


def _decrypt(settings: Settings, row: Secret) -> str:
    return unlock(settings, row.name, TITLES[row.name], row.locked)


def _require_cipher(db: Session, settings: Settings, name: str) -> "Fernet":
    """Return the cipher for a new secret; create the key for the first one."""
    cipher = _load_cipher(settings)
    if cipher is not None:
        return cipher
    if others := [row.name for row in db.exec(select(Secret)) if row.name != name]:
        raise ConflictError(
            f"The key that encrypts the other secrets, {settings.secret_file}, is missing.",
            hint=f"Restore the file, or remove these secrets first: {', '.join(sorted(others))}.",
        )
    _make_key(settings.secret_file)
    new_cipher = _load_cipher(settings)
    assert new_cipher is not None  # noqa: S101 -- just created
    return new_cipher


def _load_cipher(settings: Settings) -> "Fernet | None":
    """Return the cipher, or None while there is no key."""
    key = settings.secret_key.get_secret_value()
    if not key and settings.secret_file.exists():
        with locks.explain_os_errors(settings.home):
            key = settings.secret_file.read_text("utf-8", "replace").strip()
    if not key:
        return None
    if len(key) < MIN_KEY_LENGTH:
        raise UnavailableError(
            f"The key that encrypts secrets has fewer than {MIN_KEY_LENGTH} characters.",
            hint="Create one: openssl rand -base64 32",
        )
    from cryptography.fernet import Fernet  # noqa: PLC0415 -- heavy import

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))


def _make_key(file: Path) -> None:
    """Write a new random key: atomically, readable by its owner only."""
    with locks.explain_os_errors(file.parent):
        new = file.with_name(f".new-{file.name}")
        new.unlink(missing_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as key_file:
            key_file.write(base64.urlsafe_b64encode(os.urandom(MIN_KEY_LENGTH)) + b"\n")
            key_file.flush()
            os.fsync(key_file.fileno())
        new.replace(file)


def _require_name(name: str) -> None:
    if name not in SECRETS:
        raise NotFoundError(
            f"There is no secret named {name}.", hint=f"Choose one of: {', '.join(SECRETS)}."
        )
