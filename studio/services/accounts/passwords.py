"""Passwords: argon2id. A hash is slow and takes 64 MiB, so only two run at once."""

from functools import cache
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from studio.errors import InvalidError

if TYPE_CHECKING:
    from pwdlib import PasswordHash

MIN_LENGTH, MAX_LENGTH = 10, 200

CONCURRENT_HASHES = BoundedSemaphore(2)
"""Without a limit, 200 sign-ins at a time would take 12.8 GB."""


def hash_password(password: str) -> str:
    """Return the hash to store.

    Raises:
        InvalidError: The password is too short or too long.

    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidError(
            f"Use a password of {MIN_LENGTH} to {MAX_LENGTH} characters.",
            hint="A few words in a row are easier to remember than symbols.",
            param="password",
        )
    with CONCURRENT_HASHES:
        return _hasher().hash(password)


def verify_password(password: str, stored_hash: str) -> bool:
    """Return whether a password matches a stored hash. Takes as long without a hash."""
    with CONCURRENT_HASHES:
        return _hasher().verify(password[:MAX_LENGTH], stored_hash or _dummy_hash()) and bool(
            stored_hash
        )


@cache
def _dummy_hash() -> str:
    """Return a hash, so that an account without a password takes as long to refuse as any other."""
    return _hasher().hash("unknown-user")


@cache
def _hasher() -> "PasswordHash":
    from pwdlib import PasswordHash  # noqa: PLC0415 -- heavy import
    from pwdlib.hashers.argon2 import Argon2Hasher  # noqa: PLC0415 -- heavy import

    return PasswordHash((Argon2Hasher(),))
