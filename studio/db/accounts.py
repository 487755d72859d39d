"""The tables of access control: accounts, sessions, tokens, secrets, one-time links, audit log.

Stored responses by idempotency key are here, too: they belong to who made the request.

"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import JSON, Column, Index
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.states import text_enum


class Scope(StrEnum):
    """What a token may do; each scope includes those before it."""

    READ = "read"
    """Read everything."""
    SUBMIT = "submit"
    """Create runs, datasets, experiments and so on."""
    MANAGE = "manage"
    """Change and delete existing things."""
    ADMIN = "admin"
    """Manage accounts, and everything that reaches beyond the studio."""

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMINISTRATOR = "administrator"


class LinkPurpose(StrEnum):
    """The purpose of a one-time link."""

    ENTER = "enter"
    """Sign in to a studio without accounts."""
    FIRST = "first"
    """Become the first administrator."""
    PASSWORD = "password"  # noqa: S105 -- the word, not a password
    """Choose a password."""


class Account(SQLModel, table=True):
    """A user account."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    """In lower case."""
    role: Role = Field(sa_column=Column(text_enum(Role), nullable=False))
    password: str = ""
    """The argon2id hash of the password; empty until one is chosen."""
    subject: str | None = Field(default=None, unique=True, index=True)
    """The user's ID at the OpenID Connect issuer; unlike a name, it is never reassigned."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class LoginSession(SQLModel, table=True):
    """A signed-in browser. Only a hash of its cookie is stored."""

    __tablename__ = "sign_in"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    sha256: str = Field(unique=True)
    account_id: int | None = Field(
        default=None, foreign_key="account.id", index=True, ondelete="CASCADE"
    )
    """None in a studio without accounts."""
    address: str = ""
    agent: str = ""
    """The browser's User-Agent header."""
    began_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    seen_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class ApiToken(SQLModel, table=True):
    """A token that a program sends instead of a cookie. Only its hash is stored."""

    __tablename__ = "token"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str
    sha256: str = ""
    account_id: int | None = Field(
        default=None, foreign_key="account.id", index=True, ondelete="CASCADE"
    )
    """The owner; None in a studio without accounts."""
    scope: Scope = Field(sa_column=Column(text_enum(Scope), nullable=False))
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    expires_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class OneTimeLink(SQLModel, table=True):
    """A link that works once."""

    __tablename__ = "ticket"
    sha256: str = Field(primary_key=True)
    purpose: LinkPurpose = Field(sa_column=Column(text_enum(LinkPurpose), nullable=False))
    account_id: int | None = Field(default=None, foreign_key="account.id", ondelete="CASCADE")
    expires_at: datetime = Field(sa_type=UTCDateTime)


class AuditEntry(SQLModel, table=True):
    """An entry of the audit log: something that a user did or was denied."""

    __tablename__ = "deed"
    __table_args__ = (Index("deed_by_time", "at"),)

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    who: str
    """A name, because the account may have been deleted."""
    method: str
    route: str
    """The route's path template."""
    subject: str = ""
    """The object of the request, such as `run_id=3`."""
    permission: str
    status: int
    """The HTTP status of the response."""
    address: str = ""


class Secret(SQLModel, table=True):
    """An encrypted secret. The key is not in the database, which alone reveals nothing."""

    name: str = Field(primary_key=True)
    """The name of the field of `Settings`."""
    locked: str
    """A Fernet token of its name and value."""
    set_by: str
    """A name, because the account may have been deleted."""
    set_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class IdempotencyKey(SQLModel, table=True):
    """The response to a request with an idempotency key, replayed if the request is repeated."""

    __tablename__ = "receipt"
    key: str = Field(primary_key=True)
    sha256: str
    """The checksum of the request's URL and body."""
    status: int
    headers: dict[str, str] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    body: bytes
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
