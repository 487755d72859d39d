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

_INTEGER = re.compile(r"\s*[0-9]{1,18}\s*")
"""A number that the database can count to."""

MAX_FORM_FIELDS = 500
"""More fields than any form of ours has; a request with more is no form of ours."""

MAX_READ_SESSIONS, MAX_WRITE_SESSIONS = 24, 8
"""How many requests may hold a session at once.

Together fewer than the threads that answer requests (anyio's 40): whoever holds the database's
lock needs another thread to check its answer before it commits, and would wait for ever if all of
them waited for the lock. Whoever waits here holds no thread.
"""


class SessionSlots:
    """Where requests wait until they may use the database, in the order they came."""

    def __init__(self) -> None:
        self.readers, self.writers = Semaphore(MAX_READ_SESSIONS), Semaphore(MAX_WRITE_SESSIONS)

    def for_request(self, request: Request) -> Semaphore:
        return self.readers if _is_read_only(request) else self.writers


async def _session_slot(request: Request) -> AsyncIterator[None]:
    seats: SessionSlots = request.app.state.seats
    async with seats.for_request(request):
        yield


def _open_session(
    request: Request, _seat: Annotated[None, Depends(_session_slot, scope="function")]
) -> Iterator[Session]:
    engine = request.app.state.engine
    if _is_read_only(request):
        with read_session(engine) as session:
            yield session
        return
    with unit_of_work(engine) as session:
        # Whoever must write with the answer in hand does it before this commits.
        request.state.unit_of_work = session
        yield session


def _is_read_only(request: Request) -> bool:
    return request.method in {"GET", "HEAD"}


async def _read_session_slot(request: Request) -> AsyncIterator[None]:
    seats: SessionSlots = request.app.state.seats
    async with seats.readers:
        yield


def _open_read_session(
    request: Request, _seat: Annotated[None, Depends(_read_session_slot, scope="function")]
) -> Iterator[Session]:
    with read_session(request.app.state.engine) as session:
        yield session


def _get_settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _get_settings_with_secrets(request: Request) -> Settings:
    with read_session(request.app.state.engine) as db:
        return secrets.settings_with_secrets(db, _get_settings(request))


async def _parse_form(request: Request) -> dict[str, Any]:
    async with request.form(max_fields=MAX_FORM_FIELDS, max_files=0) as form:
        return nest(form.multi_items())


def _parse_run_ids(runs: Annotated[str, Query(max_length=1000)] = "") -> list[int]:
    return [int(part) for part in runs.split(",") if _INTEGER.fullmatch(part)]


# "function" scope commits before the answer leaves: the page we send the browser to exists.
DB = Annotated[Session, Depends(_open_session, scope="function")]
ReadDB = Annotated[Session, Depends(_open_read_session, scope="function")]
"""For a POST that writes nothing, or only once its slow work is done: nobody waits for it."""
Config = Annotated[Settings, Depends(_get_settings)]
ConfigWithSecrets = Annotated[Settings, Depends(_get_settings_with_secrets)]
"""The settings with the secrets that were given on a page, as they are now: for what needs them."""
PostedForm = Annotated[dict[str, Any], Depends(_parse_form)]
RunIds = Annotated[list[int], Depends(_parse_run_ids)]
