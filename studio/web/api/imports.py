"""Data from elsewhere as JSON: from a folder, an address, the hub, S3, or sent in parts."""

from fastapi import APIRouter
from pydantic import Field

from studio.services import sources
from studio.sources import Source
from studio.web.api import chores
from studio.web.api.chores import ChoreOut
from studio.web.api.shapes import Body
from studio.web.deps import DB, Config

router = APIRouter(prefix="/api/v1/imports", tags=["datasets"])


class NewImport(Body):
    source: Source
    name: str = Field(default="", max_length=200)
    """What the data set will be called; nothing means as the file is."""


@router.post("", status_code=202)
def bring(new: NewImport, db: DB, config: Config) -> ChoreOut:
    """Have a file fetched by a chore. When that has succeeded, its result tells the data set."""
    return chores.out(sources.bring(db, config, new.source, new.name))
