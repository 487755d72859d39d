"""The page where administrators set and delete secrets; values are never shown."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import StudioError
from studio.services.accounts import secrets
from studio.settings import Settings
from studio.web.auth.identity import CurrentIdentity
from studio.web.http.deps import DB, Config
from studio.web.http.errors import status_for
from studio.web.rendering.render import page, redirect

router = APIRouter(prefix="/settings/secrets", include_in_schema=False)

PAGE_URL = "/settings/secrets"


@router.get("")
def show(request: Request, db: DB, config: Config) -> Response:
    return _page(request, db, config)


@router.post("/{name}")
def set_secret(
    request: Request,
    name: str,
    db: DB,
    config: Config,
    who: CurrentIdentity,
    value: Annotated[str, Form(max_length=secrets.MAX_LENGTH + 100)] = "",
) -> Response:
    try:
        secrets.store(db, config, name, value, who.name)
    except StudioError as error:
        return _page(request, db, config, name, error)
    return redirect(request, f"{PAGE_URL}#{name}")


@router.post("/{name}/forget")
def delete_secret(request: Request, name: str, db: DB) -> Response:
    secrets.delete(db, name)
    return redirect(request, f"{PAGE_URL}#{name}")


def _page(
    request: Request,
    db: Session,
    config: Settings,
    refused_name: str = "",
    problem: StudioError | None = None,
) -> Response:
    status = status_for(problem) if problem else 200
    states = secrets.list_secrets(db, config)
    context = {
        "known": states,
        "refused": refused_name,
        "problem": problem,
        "longest": secrets.MAX_LENGTH,
    }
    return page(request, "settings/secrets.html", status=status, **context)
