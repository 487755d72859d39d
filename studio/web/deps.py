"""What a route may ask for."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from sqlmodel import Session

from studio.db.session import reading, unit_of_work
from studio.recipe.dotted import nest
from studio.settings import Settings

FIELDS = 500
"""More fields than any form of ours has; a request with more is no form of ours."""


def _session(request: Request) -> Iterator[Session]:
    engine = request.app.state.engine
    only_reads = request.method in {"GET", "HEAD"}
    with reading(engine) if only_reads else unit_of_work(engine) as session:
        yield session


def _config(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _posted(request: Request) -> dict[str, Any]:
    async with request.form(max_fields=FIELDS, max_files=0) as form:
        return nest(form.multi_items())


def _numbers(runs: Annotated[str, Query(max_length=1000)] = "") -> list[int]:
    return [int(part) for part in runs.split(",") if part.strip().isdecimal()]


# "function" scope commits before the answer leaves: the page we send the browser to exists.
DB = Annotated[Session, Depends(_session, scope="function")]
Config = Annotated[Settings, Depends(_config)]
Posted = Annotated[dict[str, Any], Depends(_posted)]
RunIds = Annotated[list[int], Depends(_numbers)]
