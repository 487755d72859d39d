"""Passwords: argon2id, whose hashes are slow and take 64 MiB each, so only two are made at once."""

from functools import cache
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from studio.errors import InvalidError

if TYPE_CHECKING:
    from pwdlib import PasswordHash

SHORTEST, LONGEST = 10, 200

AT_ONCE = BoundedSemaphore(2)
"""Two hundred sign-ins at a time would take 12.8 GB."""


def digest(password: str) -> str:
    """Return the hash that is kept.

    Raises:
        InvalidError: it is too short, or absurdly long.

    """
    if not SHORTEST <= len(password) <= LONGEST:
        raise InvalidError(
            f"A password has {SHORTEST} characters or more, and at most {LONGEST}.",
            hint="A few words in a row are easier to remember than signs.",
            param="password",
        )
    with AT_ONCE:
        return _hasher().hash(password)


def fits(password: str, kept: str) -> bool:
    """Whether a password is the one that was kept. Takes as long where none is."""
    with AT_ONCE:
        return _hasher().verify(password[:LONGEST], kept or _nobodys()) and bool(kept)


@cache
def _nobodys() -> str:
    """Hash something, so that a name without a password takes as long to refuse as any other."""
    return _hasher().hash("nobody has this password")


@cache
def _hasher() -> "PasswordHash":
    from pwdlib import PasswordHash  # noqa: PLC0415 -- heavy import
    from pwdlib.hashers.argon2 import Argon2Hasher  # noqa: PLC0415 -- heavy import

    return PasswordHash((Argon2Hasher(),))
