"""Pages of accounts: your own access, and for administrators all accounts and the audit log."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.accounts import Account, LinkPurpose, Role, Scope
from studio.db.session import read_session, unit_of_work
from studio.errors import InvalidError, StudioError
from studio.services.accounts import (
    accounts,
    api_tokens,
    audit_log,
    login_sessions,
    one_time_links,
    passwords,
)
from studio.settings import Settings
from studio.web.auth.identity import CurrentIdentity, Identity
from studio.web.http.deps import DB, Config
from studio.web.http.errors import status_for
from studio.web.rendering.render import page, redirect

router = APIRouter(prefix="/settings", include_in_schema=False)


RowId = Annotated[int, Path(ge=1, lt=2**63)]
FormText = Annotated[str, Form(max_length=200)]

PAGE_URL = "/settings/access"


@router.get("/access")
def show(request: Request, db: DB, who: CurrentIdentity) -> Response:
    return _page(request, db, who)


@router.post("/access/tokens")
def create_token(
    request: Request,
    db: DB,
    who: CurrentIdentity,
    name: FormText = "",
    scope: Annotated[Scope, Form()] = Scope.READ,
    days: Annotated[str, Form(max_length=10)] = "",
) -> Response:
    """Create a token and show it once."""
    try:
        token_request = api_tokens.TokenRequest(name, scope, parse_days(days))
        token, secret = api_tokens.create(db, token_request, who.account_id, who.max_scope)
    except StudioError as error:
        return _page(request, db, who, problem=error, name=name)
    return _page(request, db, who, made=token, secret=secret)


@router.post("/access/tokens/{number}")
def revoke_token(request: Request, number: RowId, db: DB, who: CurrentIdentity) -> Response:
    api_tokens.revoke(db, number, who.account_id)
    return redirect(request, PAGE_URL)


@router.post("/access/browsers")
def end_other_sessions(request: Request, db: DB, who: CurrentIdentity) -> Response:
    login_sessions.end_others(db, who.account_id, except_session=who.session_id)
    return redirect(request, PAGE_URL + "#browsers")


@router.post("/access/browsers/{number}")
def end_session(request: Request, number: RowId, db: DB, who: CurrentIdentity) -> Response:
    login_sessions.end(db, number, who.account_id)
    return redirect(request, PAGE_URL + "#browsers")


@router.post("/access/password")
def change_password(
    request: Request, who: CurrentIdentity, old: FormText, password: FormText, again: FormText
) -> Response:
    """Change the caller's password. No database session is held while hashing."""
    engine = request.app.state.engine
    try:
        with read_session(engine) as db:
            account = accounts.get(db, who.account_id or 0)
        throttle_key = f"signed in as {account.name}"
        request.app.state.tries.check_and_count(account.name, throttle_key)
        accounts.authenticate(account, old)
        request.app.state.tries.clear(account.name, throttle_key)
        if password != again:
            raise InvalidError("The passwords do not match.", param="again")
        hashed = passwords.hash_password(password)
    except StudioError as error:
        with read_session(engine) as db:
            return _page(request, db, who, refused=error)
    with unit_of_work(engine) as db:
        own_account = accounts.get(db, who.account_id or 0)
        accounts.set_password(db, own_account, hashed, except_session=who.session_id)
    return redirect(request, PAGE_URL + "#password")


def parse_days(text: str) -> int | None:
    """Return the lifetime of a token in days; None, for empty text, means no expiry.

    Raises:
        InvalidError: The text is not a whole number.

    """
    if text and not text.isdecimal():
        raise InvalidError("Days must be a whole number.", param="days")
    return int(text) if text else None


def _page(request: Request, db: Session, caller: Identity, **context: Any) -> Response:  # noqa: ANN401 -- any template variable
    defaults: dict[str, Any] = {"made": None, "secret": "", "problem": None, "refused": None}
    error = context.get("problem") or context.get("refused")
    account_id = caller.account_id
    return page(
        request,
        "accounts/access.html",
        status=status_for(error) if error else 200,
        **defaults
        | {"name": ""}
        | context
        | {
            "someone": caller,
            "mode": request.app.state.settings.sign_in,
            "tokens": api_tokens.list_tokens(db, account_id),
            "browsers": login_sessions.list_sessions(db, account_id),
            "scopes": [scope for scope in Scope if caller.max_scope.includes(scope)],
            "shortest": passwords.MIN_LENGTH,
        },
    )


PostedRole = Annotated[Role, Form()]

PAGE_SIZE = 100


@router.get("/people")
def show_people(request: Request, db: DB, config: Config) -> Response:
    return _people_page(request, db, config)


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
        return _people_page(request, db, config, problem=error, name=name)
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
        return _people_page(request, db, config, problem=error)
    return redirect(request, "/settings/people")


@router.post("/people/{number}/remove")
def remove(request: Request, number: RowId, db: DB, config: Config) -> Response:
    try:
        accounts.remove(db, accounts.get(db, number))
    except StudioError as error:
        return _people_page(request, db, config, problem=error)
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
    return _people_page(
        request, db, config, link=create_link(request, db, account), invited=account
    )


def _people_page(request: Request, db: DB, config: Settings, **context: Any) -> Response:  # noqa: ANN401 -- any template variable
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
