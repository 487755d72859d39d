"""The table of secrets that were given on a page: locked, each under the name of its setting."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from studio.db.column_types import UTCDateTime, now


class Secret(SQLModel, table=True):
    """A secret. Its key is not in the database: whoever has only this has nothing."""

    name: str = Field(primary_key=True)
    """Of the field of `Settings` that it stands in for."""
    locked: str
    """A Fernet token of its name and value."""
    set_by: str
    """A name, for the account may be gone by now."""
    set_at: datetime = Field(default_factory=now, sa_type=UTCDateTime)
