"""Single sign-on with OpenID Connect: redirect to the provider, and handle its callback."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from studio.db.session import unit_of_work
from studio.errors import NotFoundError, StudioError, UnauthorizedError
from studio.services.accounts import oidc
from studio.settings import Settings
from studio.web.accounts.login_page import local_path, sign_in_failed, start_session
from studio.web.auth import identity
from studio.web.http.deps import Config, ConfigWithSecrets

router = APIRouter(prefix="/login/oidc", include_in_schema=False)

QueryText = Annotated[str, Query(max_length=4000)]
NextUrl = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("")
def redirect_to_provider(request: Request, config: Config, there: NextUrl = "/") -> Response:
    """Redirect to the provider, with a cookie that identifies the browser in the callback."""
    _require_enabled(config)
    pending: oidc.PendingSignIns = request.app.state.pending
    state, browser, pending_sign_in = pending.add(local_path(there))
    try:
        address = oidc.authorization_url(
            config, _callback_url(request, config), state, pending_sign_in
        )
    except StudioError as error:
        return sign_in_failed(request, error)
    response = RedirectResponse(address, 303)
    response.set_cookie(
        _cookie_name(request),
        browser,
        max_age=int(oidc.PENDING_SECONDS),
        path="/",
        secure=identity.is_secure(request.scope),
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/done")
def callback(
    request: Request,
    config: ConfigWithSecrets,
    state: QueryText = "",
    code: QueryText = "",
    error: QueryText = "",
) -> Response:
    """Sign in a user authenticated by the provider. No database session is held meanwhile."""
    _require_enabled(config)
    request.state.deed = "unknown"
    app = request.app.state
    try:
        pending_sign_in = app.pending.take(
            state, identity.cookies(request.scope).get(_cookie_name(request), "")
        )
        if error or not code:
            raise UnauthorizedError(
                f"{oidc.provider_host(config)} did not sign you in.",
                hint="Try again, or sign in with a password.",
            )
        user = oidc.fetch_user(config, _callback_url(request, config), code, pending_sign_in)
        request.state.deed = user.name[:80]
        with unit_of_work(app.engine) as db:
            account = oidc.sign_in_account(db, config, user)
            account_id = account.id if account else None
        if account_id is None:
            raise oidc.no_account_error(user)
    except StudioError as problem:
        return sign_in_failed(request, problem)
    with unit_of_work(app.engine) as db:
        response = start_session(request, db, account_id, pending_sign_in.return_to)
    response.delete_cookie(_cookie_name(request), path="/")
    return response


def _require_enabled(config: Settings) -> None:
    if not oidc.is_enabled(config):
        raise NotFoundError("Single sign-on is not configured.")


def _callback_url(request: Request, config: Settings) -> str:
    base = config.public_url or str(request.base_url)
    return f"{base.rstrip('/')}/login/oidc/done"


def _cookie_name(request: Request) -> str:
    return f"{identity.cookie_name(request.scope)}_oidc"
