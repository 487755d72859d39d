"""The door for people whom another service signs in: sent there, and received again."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from studio.db.session import unit_of_work
from studio.errors import NotFoundError, StudioError, UnauthorizedError
from studio.services.accounts import oidc, oidc_accounts
from studio.settings import Settings
from studio.web.accounts.login_page import let_in, local, refused
from studio.web.auth import identity
from studio.web.http.deps import Config, Keyed

router = APIRouter(prefix="/login/oidc", include_in_schema=False)

Text = Annotated[str, Query(max_length=4000)]
There = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("")
def begin(request: Request, config: Config, there: There = "/") -> Response:
    """Send somebody to the service, with a cookie by which they are known when they come back."""
    _require_on(config)
    pending: oidc.PendingSignIns = request.app.state.pending
    state, browser, begun = pending.add(local(there))
    try:
        address = oidc.authorization_url(config, _back(request, config), state, begun)
    except StudioError as error:
        return refused(request, error)
    answer = RedirectResponse(address, 303)
    answer.set_cookie(
        _cookie(request),
        browser,
        max_age=int(oidc.PENDING_SECONDS),
        path="/",
        secure=identity.is_secure(request.scope),
        httponly=True,
        samesite="lax",
    )
    return answer


@router.get("/done")
def receive(
    request: Request, config: Keyed, state: Text = "", code: Text = "", error: Text = ""
) -> Response:
    """Let somebody in whom the service has signed in. The database is not held meanwhile."""
    _require_on(config)
    request.state.deed = "nobody"
    app = request.app.state
    try:
        begun = app.pending.take(state, identity.cookies(request.scope).get(_cookie(request), ""))
        if error or not code:
            raise UnauthorizedError(
                f"{oidc.provider_host(config)} did not sign you in.",
                hint="Try again, or by a password.",
            )
        visitor = oidc.fetch_user(config, _back(request, config), code, begun)
        request.state.deed = visitor.name[:80]
        with unit_of_work(app.engine) as db:
            account = oidc_accounts.sign_in_account(db, config, visitor)
            number = account.id if account else None
        if number is None:
            raise oidc_accounts.no_account_error(visitor)
    except StudioError as problem:
        return refused(request, problem)
    with unit_of_work(app.engine) as db:
        answer = let_in(request, db, number, begun.there)
    answer.delete_cookie(_cookie(request), path="/")
    return answer


def _require_on(config: Settings) -> None:
    if not oidc.is_enabled(config):
        raise NotFoundError("Nobody is signed in by another service here.")


def _back(request: Request, config: Settings) -> str:
    base = config.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/login/oidc/done"


def _cookie(request: Request) -> str:
    return f"{identity.cookie_name(request.scope)}_oidc"
