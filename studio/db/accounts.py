"""The tables of who may come in: accounts, sign-ins, tokens, one-time links, and who did what."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Column, Index
from sqlmodel import Field, SQLModel

from studio.db.column_types import AUTOINCREMENT, UTCDateTime, now
from studio.db.states import text_enum


class Scope(StrEnum):
    """How much may be done; each holds those before it."""

    READ = "read"
    """See all there is."""
    SUBMIT = "submit"
    """Make something new: runs, data sets, experiments."""
    MANAGE = "manage"
    """Change and delete what is there."""
    ADMIN = "admin"
    """Decide about people, and about whatever reaches beyond the studio."""

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    ADMINISTRATOR = "administrator"


class LinkPurpose(StrEnum):
    """What a one-time link is for."""

    ENTER = "enter"
    """To come into a studio without accounts."""
    FIRST = "first"
    """To become the first administrator."""
    PASSWORD = "password"  # noqa: S105 -- the word, not one
    """To choose one's password."""


class Account(SQLModel, table=True):
    """A person."""

    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    """In small letters."""
    role: Role = Field(sa_column=Column(text_enum(Role), nullable=False))
    password: str = ""
    """Its argon2id hash; nothing while none was chosen."""
    subject: str | None = Field(default=None, unique=True, index=True)
    """Who they are for a service that signs people in; names may be given to others, this not."""
    created_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class LoginSession(SQLModel, table=True):
    """A browser that was let in. What its cookie says is kept as a hash only."""

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
    """What the browser says it is."""
    began_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    seen_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)


class ApiToken(SQLModel, table=True):
    """What a program shows instead of a cookie. It is kept as a hash only."""

    __tablename__ = "token"
    __table_args__ = AUTOINCREMENT

    id: int | None = Field(default=None, primary_key=True)
    name: str
    sha256: str = ""
    account_id: int | None = Field(
        default=None, foreign_key="account.id", index=True, ondelete="CASCADE"
    )
    """Whose it is; None in a studio without accounts."""
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
    """Something that somebody did, or was refused."""

    __tablename__ = "deed"
    __table_args__ = (Index("deed_by_time", "at"),)

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
    who: str
    """A name, for the account may be gone by now."""
    method: str
    route: str
    """The template of the address."""
    subject: str = ""
    """What it was done to, as `run_id=3`."""
    permission: str
    status: int
    """What was answered."""
    address: str = ""
