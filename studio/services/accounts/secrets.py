"""Secrets that administrators give on a page: locked at rest, told to no page, used where needed.

What the environment says wins. The key is a file beside the database, or STUDIO_SECRET_KEY: whoever
takes only the database, or a backup, has nothing. A key that is missing or another never ends
anything but the work that needs the secret; what to do is said in its place.
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
from studio.db.column_types import now
from studio.db.secrets import Secret
from studio.db.session import read_session
from studio.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from studio.services.storage import locks
from studio.settings import SECRETS, Settings

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

log = logging.getLogger(__name__)

MAX_LENGTH = 4000
MIN_KEY_LENGTH = 32
"""How many characters a key has at least."""

TITLES = {
    "hub_token": "Token of the Hugging Face hub",
    "s3_key": "Access key of S3",
    "s3_secret": "Secret key of S3",
    "webhook_url": "Address of the webhook",
    "webhook_secret": "Secret that signs the webhook",
    "smtp_url": "Address of the mail server",
    "oidc_client_secret": "Secret of the studio at the sign-in service",
}
"""What a person calls each; which there are, `studio.settings.SECRETS` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """What may be told of a secret: never what it is."""

    name: str
    title: str
    variable: str
    from_environment: bool
    set_at: datetime | None = None
    set_by: str = ""
    trouble: str = ""
    """Why one that was set cannot be used."""


def store(db: Session, settings: Settings, name: str, value: str, who: str) -> None:
    """Lock a secret away, in place of the one before.

    Raises:
        ConflictError: the key that the others are locked with is missing.
        InvalidError: it is no value.
        NotFoundError: there is no secret of this name.

    """
    _require_name(name)
    value = value.strip()
    if not value.isprintable() or not 0 < len(value) <= MAX_LENGTH:
        raise InvalidError(
            f"A secret is one line of at most {MAX_LENGTH} characters.",
            hint="Copy it again, without what stands around it.",
            param="value",
        )
    redaction.register_secrets([value])
    locked = _require_cipher(db, settings, name).encrypt(f"{name}\n{value}".encode()).decode()
    db.merge(Secret(name=name, locked=locked, set_by=who, set_at=now()))


def delete(db: Session, name: str) -> None:
    """Delete a secret.

    Raises:
        NotFoundError: none was set.

    """
    _require_name(name)
    found = db.get(Secret, name)
    if found is None:
        raise NotFoundError(
            f"{TITLES[name]}: none was set here.",
            hint="One from the environment is taken away there.",
        )
    db.delete(found)


def list_secrets(db: Session, settings: Settings) -> list[SecretInfo]:
    """Return which secrets there are and where from; none of them is told."""
    kept = {row.name: row for row in db.exec(select(Secret))}
    return [_secret_info(settings, name, kept.get(name)) for name in SECRETS]


def settings_with_secrets(db: Session, settings: Settings) -> Settings:
    """Return the settings with the secrets that were set here, where the environment has none.

    One that cannot be read is left out.
    """
    found = {}
    for row in _rows_not_in_environment(db, settings, SECRETS):
        try:
            found[row.name] = SecretStr(_decrypt(settings, row))
        except UnavailableError as error:
            log.warning("secret_unreadable", extra={"secret": row.name, "reason": error.message})
    redaction.register_secrets([settings.secret_value(name) for name in SECRETS])
    redaction.register_secrets([settings.secret_key.get_secret_value()])
    return settings.model_copy(update=found) if found else settings


def register_for_redaction(engine: Engine, settings: Settings) -> None:
    """Keep out of all that this process writes and shows whatever is secret by now."""
    with read_session(engine) as db:
        settings_with_secrets(db, settings)


def settings_with_required(db: Session, settings: Settings, names: Iterable[str]) -> Settings:
    """Return the settings with these secrets, for what cannot do without those that were set.

    Raises:
        UnavailableError: one was set and cannot be read.

    """
    found = {
        one.name: SecretStr(_decrypt(settings, one))
        for one in _rows_not_in_environment(db, settings, names)
    }
    return settings.model_copy(update=found) if found else settings


def _rows_not_in_environment(db: Session, settings: Settings, names: Iterable[str]) -> list[Secret]:
    """Return what is kept of those that the environment does not tell."""
    wanted = {name for name in names if not settings.secret_value(name)}
    return [row for row in db.exec(select(Secret)) if row.name in wanted] if wanted else []


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
    from cryptography.fernet import InvalidToken  # noqa: PLC0415 -- heavy import

    lock = _load_cipher(settings)
    if lock is None:
        raise UnavailableError(
            f"{TITLES[row.name]}: its key, {settings.secret_file}, is missing.",
            hint="Put the file back, or forget this secret and set it again.",
        )
    try:
        name, _, value = lock.decrypt(row.locked.encode()).decode().partition("\n")
    except (InvalidToken, UnicodeError):
        name, value = "", ""
    if name != row.name:
        raise UnavailableError(
            f"{TITLES[row.name]}: it was locked with another key than this studio has now.",
            hint="Put that key back (secret_key, or STUDIO_SECRET_KEY), or set this secret again.",
        )
    redaction.register_secrets([value])
    return value


def _require_cipher(db: Session, settings: Settings, name: str) -> "Fernet":
    """Return the lock for a new secret; the first one makes the key."""
    lock = _load_cipher(settings)
    if lock is not None:
        return lock
    if others := [row.name for row in db.exec(select(Secret)) if row.name != name]:
        raise ConflictError(
            f"The key that other secrets are locked with, {settings.secret_file}, is missing.",
            hint=f"Put the file back, or forget them first: {', '.join(sorted(others))}.",
        )
    _make_key(settings.secret_file)
    made = _load_cipher(settings)
    assert made is not None  # noqa: S101 -- it was just made
    return made


def _load_cipher(settings: Settings) -> "Fernet | None":
    """Return what locks and opens, or None while there is no key."""
    key = settings.secret_key.get_secret_value()
    if not key and settings.secret_file.exists():
        with locks.explain_os_errors(settings.home):
            key = settings.secret_file.read_text("utf-8", "replace").strip()
    if not key:
        return None
    if len(key) < MIN_KEY_LENGTH:
        raise UnavailableError(
            f"The key that locks secrets has fewer than {MIN_KEY_LENGTH} characters.",
            hint="Make one: openssl rand -base64 32",
        )
    from cryptography.fernet import Fernet  # noqa: PLC0415 -- heavy import

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))


def _make_key(file: Path) -> None:
    """Write a key that no other install has. It appears whole, for its owner alone."""
    with locks.explain_os_errors(file.parent):
        new = file.with_name(f".new-{file.name}")
        new.unlink(missing_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as opened:
            opened.write(base64.urlsafe_b64encode(os.urandom(MIN_KEY_LENGTH)) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)


def _require_name(name: str) -> None:
    if name not in SECRETS:
        raise NotFoundError(
            f"There is no secret called {name}.", hint=f"There are: {', '.join(SECRETS)}."
        )
