"""Passwords: argon2id, whose hashes are slow and take 64 MiB each, so only two are made at once."""

from functools import cache
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from studio.errors import InvalidError

if TYPE_CHECKING:
    from pwdlib import PasswordHash

MIN_LENGTH, MAX_LENGTH = 10, 200

CONCURRENT_HASHES = BoundedSemaphore(2)
"""Two hundred sign-ins at a time would take 12.8 GB."""


def hash_password(password: str) -> str:
    """Return the hash that is kept.

    Raises:
        InvalidError: it is too short, or absurdly long.

    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidError(
            f"A password has {MIN_LENGTH} characters or more, and at most {MAX_LENGTH}.",
            hint="A few words in a row are easier to remember than signs.",
            param="password",
        )
    with CONCURRENT_HASHES:
        return _hasher().hash(password)


def verify_password(password: str, kept: str) -> bool:
    """Whether a password is the one that was kept. Takes as long where none is."""
    with CONCURRENT_HASHES:
        return _hasher().verify(password[:MAX_LENGTH], kept or _dummy_hash()) and bool(kept)


@cache
def _dummy_hash() -> str:
    """Hash something, so that a name without a password takes as long to refuse as any other."""
    return _hasher().hash("nobody has this password")


@cache
def _hasher() -> "PasswordHash":
    from pwdlib import PasswordHash  # noqa: PLC0415 -- heavy import
    from pwdlib.hashers.argon2 import Argon2Hasher  # noqa: PLC0415 -- heavy import

    return PasswordHash((Argon2Hasher(),))
