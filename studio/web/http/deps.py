"""What a route may ask for."""

import re
from asyncio import Semaphore
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from sqlmodel import Session

from studio.db.session import read_session, unit_of_work
from studio.recipe.dotted_keys import nest
from studio.services.accounts import secrets
from studio.settings import Settings

_DIGITS = re.compile(r"\s*[0-9]{1,18}\s*")
"""A number that the database can count to."""

FIELDS = 500
"""More fields than any form of ours has; a request with more is no form of ours."""

READERS, WRITERS = 24, 8
"""How many requests may hold a session at once.

Together fewer than the threads that answer requests (anyio's 40): whoever holds the database's
lock needs another thread to check its answer before it commits, and would wait for ever if all of
them waited for the lock. Whoever waits here holds no thread.
"""


class Seats:
    """Where requests wait until they may use the database, in the order they came."""

    def __init__(self) -> None:
        self.readers, self.writers = Semaphore(READERS), Semaphore(WRITERS)

    def of(self, request: Request) -> Semaphore:
        return self.readers if _only_reads(request) else self.writers


async def _seat(request: Request) -> AsyncIterator[None]:
    seats: Seats = request.app.state.seats
    async with seats.of(request):
        yield


def _session(
    request: Request, _seat: Annotated[None, Depends(_seat, scope="function")]
) -> Iterator[Session]:
    engine = request.app.state.engine
    if _only_reads(request):
        with read_session(engine) as session:
            yield session
        return
    with unit_of_work(engine) as session:
        # Whoever must write with the answer in hand does it before this commits.
        request.state.unit_of_work = session
        yield session


def _only_reads(request: Request) -> bool:
    return request.method in {"GET", "HEAD"}


async def _reading_seat(request: Request) -> AsyncIterator[None]:
    seats: Seats = request.app.state.seats
    async with seats.readers:
        yield


def _reads(
    request: Request, _seat: Annotated[None, Depends(_reading_seat, scope="function")]
) -> Iterator[Session]:
    with read_session(request.app.state.engine) as session:
        yield session


def _config(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _keyed(request: Request) -> Settings:
    with read_session(request.app.state.engine) as db:
        return secrets.settings_with_secrets(db, _config(request))


async def _posted(request: Request) -> dict[str, Any]:
    async with request.form(max_fields=FIELDS, max_files=0) as form:
        return nest(form.multi_items())


def _numbers(runs: Annotated[str, Query(max_length=1000)] = "") -> list[int]:
    return [int(part) for part in runs.split(",") if _DIGITS.fullmatch(part)]


# "function" scope commits before the answer leaves: the page we send the browser to exists.
DB = Annotated[Session, Depends(_session, scope="function")]
Reads = Annotated[Session, Depends(_reads, scope="function")]
"""For a POST that writes nothing, or only once its slow work is done: nobody waits for it."""
Config = Annotated[Settings, Depends(_config)]
Keyed = Annotated[Settings, Depends(_keyed)]
"""The settings with the secrets that were given on a page, as they are now: for what needs them."""
Posted = Annotated[dict[str, Any], Depends(_posted)]
RunIds = Annotated[list[int], Depends(_numbers)]
