"""The administrators' pages: accounts and the audit log."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.accounts import Account, LinkPurpose, Role
from studio.errors import StudioError
from studio.services.accounts import accounts, audit_log, one_time_links
from studio.settings import Settings
from studio.web.http.deps import DB, Config
from studio.web.http.errors import status_for
from studio.web.rendering.render import page, redirect

router = APIRouter(prefix="/settings", include_in_schema=False)

RowId = Annotated[int, Path(ge=1, lt=2**63)]
PostedRole = Annotated[Role, Form()]

PAGE_SIZE = 100


@router.get("/people")
def show(request: Request, db: DB, config: Config) -> Response:
    return _page(request, db, config)


@router.post("/people")
def add(
    request: Request,
    db: DB,
    config: Config,
    name: Annotated[str, Form(max_length=200)] = "",
    role: PostedRole = Role.MEMBER,
) -> Response:
    try:
        account = accounts.add(db, name, role)
    except StudioError as error:
        return _page(request, db, config, problem=error, name=name)
    return _with_link(request, db, config, account)


@router.post("/people/{number}/link")
def link(request: Request, number: RowId, db: DB, config: Config) -> Response:
    """Show a link to choose a new password."""
    return _with_link(request, db, config, accounts.get(db, number))


@router.post("/people/{number}/role")
def change_role(
    request: Request, number: RowId, db: DB, config: Config, role: PostedRole
) -> Response:
    try:
        accounts.change_role(db, accounts.get(db, number), role)
    except StudioError as error:
        return _page(request, db, config, problem=error)
    return redirect(request, "/settings/people")


@router.post("/people/{number}/remove")
def remove(request: Request, number: RowId, db: DB, config: Config) -> Response:
    try:
        accounts.remove(db, accounts.get(db, number))
    except StudioError as error:
        return _page(request, db, config, problem=error)
    return redirect(request, "/settings/people")


@router.get("/log")
def show_audit_log(
    request: Request,
    db: DB,
    config: Config,
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    who: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    entries = audit_log.newest(db, PAGE_SIZE, before, who)
    return page(
        request,
        "accounts/audit_log.html",
        deeds=entries,
        who=who,
        older=entries[-1].id if len(entries) == PAGE_SIZE else None,
        days=config.audit_days,
        mode=config.sign_in,
    )


def _with_link(request: Request, db: DB, config: Settings, account: Account) -> Response:
    return _page(request, db, config, link=create_link(request, db, account), invited=account)


def _page(request: Request, db: DB, config: Settings, **context: Any) -> Response:  # noqa: ANN401 -- any template variable
    error = context.get("problem")
    defaults: dict[str, Any] = {"problem": None, "name": "", "link": "", "invited": None}
    return page(
        request,
        "accounts/people.html",
        status=status_for(error) if error else 200,
        people=accounts.list_all(db),
        roles=list(Role),
        mode=config.sign_in,
        **defaults | context,
    )


def create_link(request: Request, db: Session, account: Account) -> str:
    """Create a link for an account; the previous link stops working."""
    secret = one_time_links.issue(db, LinkPurpose.PASSWORD, account.id)
    base_url = request.app.state.settings.public_url or str(request.base_url)
    return f"{base_url.rstrip('/')}/login?t={secret}"
