"""FastAPI dependencies of routes."""

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
"""An integer that fits into a database column."""

MAX_FORM_FIELDS = 500
"""More fields than any of our forms has; a request with more is rejected."""

MAX_READ_SESSIONS, MAX_WRITE_SESSIONS = 24, 8
"""How many requests may hold a session at once.

Together fewer than the threads that handle requests (anyio's 40): a request that holds the
database lock needs another thread to validate its response before it commits, and would deadlock
if every thread waited for the lock. A request that waits for a slot holds no thread.
"""

MAX_GRADERS = 4
"""How many requests may grade an answer at once; each can take a thread and half a gigabyte."""


class SessionSlots:
    """Limits how many requests use the database at once; others wait in order of arrival."""

    def __init__(self) -> None:
        self.readers, self.writers = Semaphore(MAX_READ_SESSIONS), Semaphore(MAX_WRITE_SESSIONS)

    def for_request(self, request: Request) -> Semaphore:
        return self.readers if _is_read_only(request) else self.writers


async def _session_slot(request: Request) -> AsyncIterator[None]:
    slots: SessionSlots = request.app.state.seats
    async with slots.for_request(request):
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
        # Code that must write after the response is built uses this session before it commits.
        request.state.unit_of_work = session
        yield session


def _is_read_only(request: Request) -> bool:
    return request.method in {"GET", "HEAD"}


async def _read_session_slot(request: Request) -> AsyncIterator[None]:
    slots: SessionSlots = request.app.state.seats
    async with slots.readers:
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


# "function" scope commits before the response is sent: a page we redirect to exists by then.
DB = Annotated[Session, Depends(_open_session, scope="function")]
ReadDB = Annotated[Session, Depends(_open_read_session, scope="function")]
"""For a POST that writes nothing, or only after slow work: it takes no write lock meanwhile."""
Config = Annotated[Settings, Depends(_get_settings)]
ConfigWithSecrets = Annotated[Settings, Depends(_get_settings_with_secrets)]
"""The settings including the current secrets that were set on the settings page."""
PostedForm = Annotated[dict[str, Any], Depends(_parse_form)]
RunIds = Annotated[list[int], Depends(_parse_run_ids)]
