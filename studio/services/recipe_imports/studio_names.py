"""The datasets and models of this studio, by the names that files of other tools give them."""

from pathlib import PurePosixPath

from sqlmodel import Session, col, or_, select

from studio.db.tables import Dataset
from studio.services.models import models

_FILE_PREFIX = "file-"
"""How the studio names its datasets in OpenAI's API, before their numbers."""
_MAX_DIGITS = 18


class StudioNames:
    """Looks names up in the database."""

    def __init__(self, db: Session) -> None:
        self._db = db

    def dataset(self, name: str) -> str:
        """Return the name of the dataset with rows that a file names; empty if there is none.

        It may be named by its name here, by the file or the address it is from, or as in OpenAI's
        API.
        """
        ready = select(Dataset).where(col(Dataset.version).is_not(None))
        number = name.removeprefix(_FILE_PREFIX)
        if name != number and number.isdecimal() and len(number) <= _MAX_DIGITS:
            ready = ready.where(Dataset.id == int(number))
        else:
            path = PurePosixPath(name)
            ready = ready.where(
                or_(
                    Dataset.name == name,
                    Dataset.source == name,
                    Dataset.filename == path.name,
                    Dataset.name == path.stem,
                )
            )
        found = self._db.exec(ready.order_by(col(Dataset.id).desc())).all()
        exact = [one for one in found if one.name == name]
        return next((one.name for one in (*exact, *found)), "")

    def model(self, name: str) -> str:
        """Return the name of the model that a file names; empty if there is none."""
        listed = models.newest(self._db)
        named = [one for one in listed if one.name == name]
        placed = [one for one in listed if name in (one.location, one.repo)]
        return next((one.name for one in (*named, *placed)), "")
