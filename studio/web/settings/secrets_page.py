"""Secrets: set and forgotten by administrators, shown to nobody."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import StudioError
from studio.services.accounts import secrets
from studio.settings import Settings
from studio.web.auth.identity import Who
from studio.web.http.deps import DB, Config
from studio.web.http.errors import status_of
from studio.web.rendering.render import go, page

router = APIRouter(prefix="/settings/secrets", include_in_schema=False)

HOME = "/settings/secrets"


@router.get("")
def show(request: Request, db: DB, config: Config) -> Response:
    return _page(request, db, config)


@router.post("/{name}")
def keep(
    request: Request,
    name: str,
    db: DB,
    config: Config,
    who: Who,
    value: Annotated[str, Form(max_length=secrets.MAX_LENGTH + 100)] = "",
) -> Response:
    try:
        secrets.store(db, config, name, value, who.name)
    except StudioError as error:
        return _page(request, db, config, name, error)
    return go(request, f"{HOME}#{name}")


@router.post("/{name}/forget")
def forget(request: Request, name: str, db: DB) -> Response:
    secrets.delete(db, name)
    return go(request, f"{HOME}#{name}")


def _page(
    request: Request,
    db: Session,
    config: Settings,
    refused: str = "",
    problem: StudioError | None = None,
) -> Response:
    status = status_of(problem) if problem else 200
    known = secrets.list_secrets(db, config)
    about = {"known": known, "refused": refused, "problem": problem, "longest": secrets.MAX_LENGTH}
    return page(request, "settings/secrets.html", status=status, **about)
