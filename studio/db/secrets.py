"""The table of secrets set on the Settings page, encrypted, by the name of the setting."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from studio.db.column_types import UTCDateTime, now


class Secret(SQLModel, table=True):
    """An encrypted secret. The key is not in the database, which alone reveals nothing."""

    name: str = Field(primary_key=True)
    """The name of the field of `Settings`."""
    locked: str
    """A Fernet token of its name and value."""
    set_by: str
    """A name, because the account may have been deleted."""
    set_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
