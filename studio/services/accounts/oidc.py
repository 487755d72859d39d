"""Single sign-on with OpenID Connect: authorization code flow with PKCE, state and nonce.

An ID token is accepted only if the provider's key signed it, for this client and this sign-in, and
it has not expired. Only two algorithms are allowed, which rules out algorithm confusion. A user's
account is found or created, and their groups are mapped to roles.
"""

import base64
import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from sqlmodel import Session, select

from studio.db.accounts import Account, Role
from studio.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    UnauthorizedError,
    UnavailableError,
)
from studio.network import safe_http
from studio.services.accounts import accounts, login_sessions
from studio.services.accounts.login_sessions import hash_secret
from studio.settings import LOOPBACK_HOSTS, Settings

ALGORITHMS = ("RS256", "ES256")
TIMEOUT_SECONDS = 15.0
MAX_BYTES = 2**20
"""Largest response in bytes."""
LEEWAY_SECONDS = 60
"""Largest clock difference."""
PENDING_SECONDS = 600.0
MAX_PENDING = 1000
"""Limits on pending sign-ins: seconds each is remembered, and how many at a time."""

_RANKS = list(Role)
_RETRY_HINT = "Start again from the sign-in page."


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSignIn:
    """A user was redirected to the provider and has not come back yet."""

    browser: str
    """Hash of a secret in the browser's cookie, so that another browser cannot use the response."""
    nonce: str
    verifier: str
    return_to: str
    """The page to open after the sign-in."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcUser:
    """The user, as reported by the provider."""

    subject: str
    """Permanent identifier: the issuer and the user's id there."""
    name: str
    groups: frozenset[str] = frozenset()


@dataclass(slots=True)
class PendingSignIns:
    """Pending sign-ins by state; each state can be used once."""

    clock: Callable[[], float] = time.monotonic
    _pending: dict[str, PendingSignIn] = field(default_factory=dict)

    def add(self, return_to: str) -> tuple[str, str, PendingSignIn]:
        """Add a sign-in. Return its state and the secret for the browser's cookie."""
        now = self.clock()
        for state, old in list(self._pending.items()):
            if now - old.at > PENDING_SECONDS or len(self._pending) >= MAX_PENDING:
                self._pending.pop(state, None)
        state, browser = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        sign_in = PendingSignIn(
            browser=hash_secret(browser),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            return_to=return_to,
            at=now,
        )
        self._pending[state] = sign_in
        return state, browser, sign_in

    def take(self, state: str, browser: str) -> PendingSignIn:
        """Remove and return the sign-in with a state.

        Raises:
            UnauthorizedError: There is none, or it belongs to another browser.

        """
        sign_in = self._pending.pop(state, None)
        if (
            sign_in is None
            or self.clock() - sign_in.at > PENDING_SECONDS
            or not secrets.compare_digest(sign_in.browser, hash_secret(browser))
        ):
            raise UnauthorizedError(
                "This response does not match a pending sign-in.",
                hint=f"It was used already, expired, or belongs to another browser. {_RETRY_HINT}",
            )
        return sign_in


def is_enabled(settings: Settings) -> bool:
    is_named = bool(settings.oidc_issuer and settings.oidc_client_id)
    return settings.sign_in == "accounts" and is_named


def provider_host(settings: Settings) -> str:
    """Return the provider's host, as shown to users."""
    return urlsplit(settings.oidc_issuer).hostname or settings.oidc_issuer


def authorization_url(
    settings: Settings, redirect_uri: str, state: str, sign_in: PendingSignIn
) -> str:
    """Return the provider's URL to redirect the user to.

    Raises:
        StudioError: The provider cannot be reached, or its metadata is invalid.

    """
    _require_authlib()
    from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415 -- heavy import

    endpoint = _require_endpoint(_discover(settings), "authorization_endpoint")
    parameters = {
        "response_type": "code",
        "client_id": settings.oidc_client_id,
        "redirect_uri": redirect_uri,
        "scope": "openid profile email",
        "state": state,
        "nonce": sign_in.nonce,
        "code_challenge": create_s256_code_challenge(sign_in.verifier),
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"


def fetch_user(
    settings: Settings, redirect_uri: str, code: str, sign_in: PendingSignIn
) -> OidcUser:
    """Exchange an authorization code for the user.

    Raises:
        StudioError: The provider cannot be reached, or its response is not valid.

    """
    _require_authlib()
    metadata = _discover(settings)
    body, headers = _token_request(settings, metadata, redirect_uri, code, sign_in)
    response = _fetch_json(settings, _require_endpoint(metadata, "token_endpoint"), headers, body)
    if "error" in response or not isinstance(response.get("id_token"), str):
        raise UnauthorizedError(
            f"{provider_host(settings)} did not confirm who you are: {_error_text(response)}.",
            hint=_RETRY_HINT,
        )
    keys = _fetch_json(settings, _require_endpoint(metadata, "jwks_uri"))
    return _user_from_claims(
        _verify_id_token(settings, response["id_token"], keys, sign_in), settings
    )


def sign_in_account(db: Session, settings: Settings, visitor: OidcUser) -> Account | None:
    """Return a user's account, created or updated from their groups.

    None if they may not sign in; their existing sessions are then ended.

    Raises:
        ConflictError: The name belongs to another account.
        InvalidError: The name is not valid, or the settings cannot be parsed.

    """
    existing = db.exec(select(Account).where(Account.subject == visitor.subject)).first()
    role, decides = _role_for(settings, visitor), bool(settings.oidc_groups)
    if role is None and (existing is None or decides) and not _is_invited(db, settings, visitor):
        if existing is not None:
            login_sessions.end_others(db, existing.id)
        return None
    account = existing or _claim_or_create(db, visitor, role)
    if decides and role is not None and account.role is not role:
        with suppress(ConflictError):  # The last administrator keeps the role.
            accounts.change_role(db, account, role)
    return account


def no_account_error(visitor: OidcUser) -> ForbiddenError:
    return ForbiddenError(
        f"{visitor.name} has no account here.",
        hint="Ask an administrator to add you.",
    )


def group_roles(settings: Settings) -> dict[str, Role]:
    """Return the role of each group.

    Raises:
        InvalidError: The setting is not written as group=role.

    """
    parts = [part.strip() for part in settings.oidc_groups.split(",") if part.strip()]
    try:
        pairs = [part.rsplit("=", 1) for part in parts]
        return {group.strip(): Role(role.strip()) for group, role in pairs}
    except ValueError as error:
        raise InvalidError(
            f"STUDIO_OIDC_GROUPS is not valid: {error}.",
            hint="Write group=role, separated by commas, e.g. ml-admins=administrator,ml=member",
        ) from error


def _verify_id_token(
    settings: Settings, token: str, keys: dict[str, Any], sign_in: PendingSignIn
) -> dict[str, Any]:
    """Return the claims of an ID token after verifying signature, issuer, audience and nonce."""
    from authlib.oidc.core import CodeIDToken  # noqa: PLC0415 -- heavy import
    from joserfc import jwt  # noqa: PLC0415 -- heavy import
    from joserfc.errors import JoseError  # noqa: PLC0415 -- heavy import
    from joserfc.jwk import KeySet  # noqa: PLC0415 -- heavy import

    claim_options = {
        "iss": {"essential": True, "value": settings.oidc_issuer},
        "aud": {"essential": True, "value": settings.oidc_client_id},
        "sub": {"essential": True},
        "exp": {"essential": True},
    }
    parameters = {"nonce": sign_in.nonce, "client_id": settings.oidc_client_id}
    try:
        decoded = jwt.decode(token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))  # type: ignore[arg-type] # invalid keys raise, see below
        claims = CodeIDToken(decoded.claims, decoded.header, claim_options, parameters)
        claims.validate(leeway=LEEWAY_SECONDS)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise UnauthorizedError(
            f"The ID token of {provider_host(settings)} is not valid: {error}.".replace("..", "."),
            hint=f"{_RETRY_HINT} If it happens again, contact your administrator.",
        ) from error
    return dict(claims)


def _user_from_claims(claims: dict[str, Any], settings: Settings) -> OidcUser:
    verified = claims.get("email") if claims.get("email_verified") is True else None
    name = str(claims.get("preferred_username") or verified or claims["sub"])
    groups = claims.get("groups")
    return OidcUser(
        subject=f"{settings.oidc_issuer} {claims['sub']}",
        name=name,
        groups=frozenset(map(str, groups)) if isinstance(groups, list) else frozenset(),
    )


def _token_request(
    settings: Settings,
    metadata: dict[str, Any],
    redirect_uri: str,
    code: str,
    sign_in: PendingSignIn,
) -> tuple[bytes, dict[str, str]]:
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "client_id": settings.oidc_client_id,
        "code_verifier": sign_in.verifier,
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    secret = settings.secret_value("oidc_client_secret")
    auth_methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    if secret and "client_secret_basic" in auth_methods:
        pair = f"{quote(settings.oidc_client_id, safe='')}:{quote(secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif secret:
        form["client_secret"] = secret
    return urlencode(form).encode(), headers


def _discover(settings: Settings) -> dict[str, Any]:
    issuer = settings.oidc_issuer
    if urlsplit(issuer).scheme != "https" and provider_host(settings) not in LOOPBACK_HOSTS:
        raise InvalidError(
            f"{issuer} is not secure: it does not use HTTPS.",
            hint="STUDIO_OIDC_ISSUER must start with https://",
        )
    metadata = _fetch_json(settings, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if metadata.get("issuer") != issuer:
        raise InvalidError(
            f"{issuer} reports a different issuer: {metadata.get('issuer')}.",
            hint="Set STUDIO_OIDC_ISSUER to exactly the issuer it reports.",
        )
    return metadata


def _require_endpoint(metadata: dict[str, Any], name: str) -> str:
    endpoint = metadata.get(name)
    if not isinstance(endpoint, str):
        raise UnavailableError(f"The sign-in service does not publish its {name}.")
    return endpoint


def _fetch_json(
    settings: Settings,
    url: str,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> dict[str, Any]:
    """Fetch JSON. The issuer's own host is configured, so it may be an internal one."""
    is_its_own = urlsplit(url).netloc == urlsplit(settings.oidc_issuer).netloc
    allow_internal = is_its_own or settings.allow_internal_addresses
    request_headers = {"Accept": "application/json", "User-Agent": "mantissa-studio"} | (
        headers or {}
    )
    content = b""
    with safe_http.open_url(
        url, request_headers, seconds=TIMEOUT_SECONDS, allow_internal=allow_internal, body=body
    ) as answer:
        for chunk in answer.iter_bytes():
            content += chunk
            if len(content) > MAX_BYTES:
                break
    try:
        payload = json.loads(content)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise UnavailableError(
            f"{safe_http.redact_url(url)} answered {answer.status} without valid JSON.",
            hint="Check STUDIO_OIDC_ISSUER.",
        )
    return payload


def _error_text(response: dict[str, Any]) -> str:
    text = response.get("error_description") or response.get("error") or "it sent no token"
    return "".join(character for character in str(text)[:200] if character.isprintable()).rstrip(
        "."
    )


def _require_authlib() -> None:
    try:
        import authlib  # noqa: F401, PLC0415 -- optional dependency
    except ImportError as error:
        raise UnavailableError(
            "The package for OpenID Connect is not installed.",
            hint='An administrator can install it: pip install "mantissa-studio[oidc]"',
        ) from error


def _role_for(settings: Settings, visitor: OidcUser) -> Role | None:
    """Return the highest role of a user's groups, or the role of new users."""
    matching_roles = [
        role for group, role in group_roles(settings).items() if group in visitor.groups
    ]
    if matching_roles:
        return max(matching_roles, key=_RANKS.index)
    return Role(settings.new_people) if settings.new_people else None


def _is_invited(db: Session, settings: Settings, visitor: OidcUser) -> bool:
    """Return whether an administrator added this name and no one has signed in with it yet."""
    account = accounts.find(db, visitor.name)
    return not settings.oidc_groups and account is not None and _is_unused(account)


def _claim_or_create(db: Session, visitor: OidcUser, role: Role | None) -> Account:
    """Return the account of a new user: the one reserved for the name, or a new one."""
    account = accounts.find(db, visitor.name)
    if account is not None and not _is_unused(account):
        raise ConflictError(
            f"Another account is named {account.name}.",
            hint="An administrator can remove that account, or rename you in the sign-in service.",
        )
    account = account or accounts.add(db, visitor.name, role or Role.VIEWER)
    account.subject = visitor.subject
    db.flush()
    return account


def _is_unused(account: Account) -> bool:
    return not account.password and account.subject is None
