"""Pages of accounts: signing in, your own access, all accounts, and the audit log."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlmodel import Session

from studio.db.accounts import Account, LinkPurpose, Role, Scope
from studio.db.session import read_session, unit_of_work
from studio.errors import ConflictError, InvalidError, NotFoundError, StudioError, UnauthorizedError
from studio.services.accounts import (
    accounts,
    api_tokens,
    audit_log,
    login_sessions,
    oidc,
    passwords,
)
from studio.settings import Settings
from studio.web.auth import identity
from studio.web.auth.identity import CurrentIdentity, Identity, OptionalIdentity
from studio.web.http.deps import DB, Config, ConfigWithSecrets
from studio.web.http.errors import status_for
from studio.web.rendering.render import page, redirect

router = APIRouter(include_in_schema=False)


FormText = Annotated[str, Form(max_length=200)]
QueryText = Annotated[str, Query(max_length=4000)]
FormSecret = Annotated[str, Form(max_length=400)]
NextUrl = Annotated[str, Query(alias="next", max_length=2000)]
PostedNextUrl = Annotated[str, Form(alias="next", max_length=2000)]

_LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x1f\x7f]*")


@router.get("/login")
def show_login(
    request: Request, config: Config, visitor: OptionalIdentity, t: str = "", there: NextUrl = "/"
) -> Response:
    if t:
        return _open_link(request, visitor, t)
    if visitor is not None:
        return RedirectResponse(local_path(there), 303)
    if config.sign_in == "link":
        return page(request, "accounts/link.html", problem=None)
    return _sign_in_page(request, local_path(there))


@router.post("/login")
def sign_in(
    request: Request, name: FormText = "", password: FormSecret = "", there: PostedNextUrl = "/"
) -> Response:
    """Sign in with name and password. No database session is held while hashing."""
    state, address = request.app.state, identity.client_address(request.scope)
    request.state.actor_name = name.strip().lower()[:80] or "unknown"
    try:
        state.tries.check_and_count(name, address)
        with read_session(state.engine) as db:
            account = accounts.find(db, name)
        account = accounts.authenticate(account, password)
    except StudioError as error:
        return _sign_in_page(request, local_path(there), name, error)
    state.tries.clear(name, address)
    with unit_of_work(state.engine) as db:
        return start_session(request, db, account.id, local_path(there))


@router.post("/login/password")
def choose_password(
    request: Request,
    t: FormSecret,
    name: FormText = "",
    password: FormSecret = "",
    again: FormSecret = "",
) -> Response:
    """Set a password with a one-time link, and sign in."""
    engine = request.app.state.engine
    try:
        if password != again:
            raise InvalidError("The passwords do not match.", param="again")
        hashed = passwords.hash_password(password)
        with unit_of_work(engine) as db:
            account = _account_for_link(db, t, name)
            accounts.set_password(db, account, hashed)
            request.state.actor_name = account.name
            return start_session(request, db, account.id, "/")
    except UnauthorizedError as error:
        return page(request, "accounts/link.html", status=401, problem=error)
    except StudioError as error:
        with read_session(engine) as db:
            return _password_page(request, db, t, error, name)


@router.post("/logout")
def sign_out(request: Request, db: DB, visitor: OptionalIdentity) -> Response:
    if visitor is not None and visitor.session_id is not None:
        login_sessions.end(db, visitor.session_id, visitor.account_id)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(identity.cookie_name(request.scope), path="/")
    return response


def local_path(there: str) -> str:
    """Return a path of this studio, never a URL of another site, however it is written."""
    return there if _LOCAL_PATH.fullmatch(there) else "/"


def start_session(request: Request, db: Session, account_id: int | None, there: str) -> Response:
    """Start a session and redirect, with a session cookie that scripts cannot read."""
    agent = request.headers.get("user-agent", "")
    secret = login_sessions.begin(db, account_id, identity.client_address(request.scope), agent)
    response = RedirectResponse(there, 303)
    response.set_cookie(
        identity.cookie_name(request.scope),
        secret,
        max_age=int(login_sessions.ABSOLUTE_TIMEOUT.total_seconds()),
        path="/",
        secure=identity.is_secure(request.scope),
        httponly=True,
        samesite="lax",
    )
    return response


def _open_link(request: Request, visitor: OptionalIdentity, secret: str) -> Response:
    """Sign in with a one-time link, or show the form for the password it allows to set."""
    try:
        with unit_of_work(request.app.state.engine) as db:
            link = login_sessions.verify_link(db, secret)
            if link.purpose is not LinkPurpose.ENTER:
                return _password_page(request, db, secret)
            login_sessions.redeem_link(db, secret)
            request.state.actor_name = identity.LOCAL_IDENTITY.name
            return start_session(request, db, None, "/")
    except UnauthorizedError as error:
        if visitor is not None:
            return RedirectResponse("/", 303)
        return page(request, "accounts/link.html", status=401, problem=error)


def _account_for_link(db: Session, secret: str, name: str) -> Account:
    link = login_sessions.redeem_link(db, secret)
    if link.purpose is LinkPurpose.FIRST:
        if accounts.has_any(db):
            raise ConflictError("An account already exists. Ask an administrator for access.")
        return accounts.add(db, name, Role.ADMINISTRATOR)
    account = login_sessions.get_link_account(db, link)
    if link.purpose is not LinkPurpose.PASSWORD or account is None:
        raise UnauthorizedError("This link is not for setting a password.")
    return account


def _sign_in_page(
    request: Request, next_path: str, name: str = "", problem: StudioError | None = None
) -> Response:
    status = status_for(problem) if problem else 200
    config = request.app.state.settings
    service = oidc.provider_host(config) if oidc.is_enabled(config) else ""
    context = {"there": next_path, "name": name, "problem": problem, "service": service}
    return page(request, "accounts/sign_in.html", status=status, **context)


def _password_page(
    request: Request,
    db: Session,
    secret: str,
    problem: StudioError | None = None,
    name: str = "",
) -> Response:
    link = login_sessions.verify_link(db, secret)
    account = login_sessions.get_link_account(db, link)
    return page(
        request,
        "accounts/password.html",
        status=status_for(problem) if problem else 200,
        secret=secret,
        is_first=link.purpose is LinkPurpose.FIRST,
        name=account.name if account else name,
        problem=problem,
        shortest=passwords.MIN_LENGTH,
    )


@router.get("/login/oidc")
def redirect_to_provider(request: Request, config: Config, there: NextUrl = "/") -> Response:
    """Redirect to the provider, with a cookie that identifies the browser in the callback."""
    _require_oidc(config)
    pending: oidc.PendingSignIns = request.app.state.pending
    state, browser, pending_sign_in = pending.add(local_path(there))
    try:
        address = oidc.authorization_url(
            config, _callback_url(request, config), state, pending_sign_in
        )
    except StudioError as error:
        return _sign_in_page(request, "/", problem=error)
    response = RedirectResponse(address, 303)
    response.set_cookie(
        _oidc_cookie_name(request),
        browser,
        max_age=int(oidc.PENDING_SECONDS),
        path="/",
        secure=identity.is_secure(request.scope),
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/login/oidc/done")
def callback(
    request: Request,
    config: ConfigWithSecrets,
    state: QueryText = "",
    code: QueryText = "",
    error: QueryText = "",
) -> Response:
    """Sign in a user authenticated by the provider. No database session is held meanwhile."""
    _require_oidc(config)
    request.state.actor_name = "unknown"
    app = request.app.state
    try:
        pending_sign_in = app.pending.take(
            state, identity.cookies(request.scope).get(_oidc_cookie_name(request), "")
        )
        if error or not code:
            raise UnauthorizedError(
                f"{oidc.provider_host(config)} did not sign you in.",
                hint="Try again, or sign in with a password.",
            )
        user = oidc.fetch_user(config, _callback_url(request, config), code, pending_sign_in)
        request.state.actor_name = user.name[:80]
        with unit_of_work(app.engine) as db:
            account = oidc.sign_in_account(db, config, user)
            account_id = account.id if account else None
        if account_id is None:
            raise oidc.no_account_error(user)
    except StudioError as problem:
        return _sign_in_page(request, "/", problem=problem)
    with unit_of_work(app.engine) as db:
        response = start_session(request, db, account_id, pending_sign_in.return_to)
    response.delete_cookie(_oidc_cookie_name(request), path="/")
    return response


def _require_oidc(config: Settings) -> None:
    if not oidc.is_enabled(config):
        raise NotFoundError("Single sign-on is not configured.")


def _callback_url(request: Request, config: Settings) -> str:
    base = config.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/login/oidc/done"


def _oidc_cookie_name(request: Request) -> str:
    return f"{identity.cookie_name(request.scope)}_oidc"


RowId = Annotated[int, Path(ge=1, lt=2**63)]

PAGE_URL = "/settings/access"


@router.get("/settings/access")
def show(request: Request, db: DB, who: CurrentIdentity) -> Response:
    return _page(request, db, who)


@router.post("/settings/access/tokens")
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


@router.post("/settings/access/tokens/{number}")
def revoke_token(request: Request, number: RowId, db: DB, who: CurrentIdentity) -> Response:
    api_tokens.revoke(db, number, who.account_id)
    return redirect(request, PAGE_URL)


@router.post("/settings/access/browsers")
def end_other_sessions(request: Request, db: DB, who: CurrentIdentity) -> Response:
    login_sessions.end_others(db, who.account_id, except_session=who.session_id)
    return redirect(request, PAGE_URL + "#browsers")


@router.post("/settings/access/browsers/{number}")
def end_session(request: Request, number: RowId, db: DB, who: CurrentIdentity) -> Response:
    login_sessions.end(db, number, who.account_id)
    return redirect(request, PAGE_URL + "#browsers")


@router.post("/settings/access/password")
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


@router.get("/settings/people")
def show_people(request: Request, db: DB, config: Config) -> Response:
    return _people_page(request, db, config)


@router.post("/settings/people")
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


@router.post("/settings/people/{number}/link")
def link(request: Request, number: RowId, db: DB, config: Config) -> Response:
    """Show a link to choose a new password."""
    return _with_link(request, db, config, accounts.get(db, number))


@router.post("/settings/people/{number}/role")
def change_role(
    request: Request, number: RowId, db: DB, config: Config, role: PostedRole
) -> Response:
    try:
        accounts.change_role(db, accounts.get(db, number), role)
    except StudioError as error:
        return _people_page(request, db, config, problem=error)
    return redirect(request, "/settings/people")


@router.post("/settings/people/{number}/remove")
def remove(request: Request, number: RowId, db: DB, config: Config) -> Response:
    try:
        accounts.remove(db, accounts.get(db, number))
    except StudioError as error:
        return _people_page(request, db, config, problem=error)
    return redirect(request, "/settings/people")


@router.get("/settings/log")
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
    secret = login_sessions.issue_link(db, LinkPurpose.PASSWORD, account.id)
    base_url = request.app.state.settings.public_url or str(request.base_url)
    return f"{base_url.rstrip('/')}/login?t={secret}"
