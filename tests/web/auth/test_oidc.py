"""Sign-in by another service: a real one on this machine, and what must not be believed of it."""

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.accounts import Role
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import accounts
from studio.services.accounts.oidc import PENDING_SECONDS, PendingSignIns
from studio.settings import Settings
from tests.fakes.oidc_provider import CLIENT, SECRET, Provider, run_provider
from tests.support.page_reader import parse_page
from tests.support.visitors import PASSWORD, Visitors, make_visitors

GROUPS = "chiefs=administrator,crew=member"


@pytest.fixture(scope="module")
def one_provider() -> Iterator[Provider]:
    with run_provider() as made:
        yield made


@pytest.fixture
def provider(one_provider: Provider) -> Provider:
    one_provider.algorithm, one_provider.refuses = "RS256", ""
    one_provider.person, one_provider.calls_itself = {}, one_provider.url
    return one_provider


@pytest.fixture
def home(engine: Engine, settings: Settings, provider: Provider) -> Visitors:
    return built(engine, settings, provider, new_people="viewer")


def built(engine: Engine, settings: Settings, provider: Provider, **more: Any) -> Visitors:  # noqa: ANN401 -- any setting
    given = {
        "oidc_issuer": provider.url,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SecretStr(SECRET),
    }
    with unit_of_work(engine) as db:
        accounts.add(db, "root", Role.ADMINISTRATOR)
    return make_visitors(engine, settings.model_copy(update=given | more), "accounts")


def come(browser: TestClient, provider: Provider, there: str = "/runs") -> Response:
    """Go through it all, and return what the studio answers at the end."""
    sent = browser.get("/login/oidc", params={"next": there})
    assert sent.status_code == 303, sent.text
    return browser.get(provider.sign_in(sent.headers["location"]))


def role_of(engine: Engine, name: str) -> Role | None:
    with read_session(engine) as db:
        found = accounts.find(db, name)
        return found.role if found else None


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_user_signed_in_by_provider_gets_session(
    home: Visitors, provider: Provider, algorithm: str
) -> None:
    provider.algorithm = algorithm
    browser = home.stranger()

    answer = come(browser, provider)

    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    assert browser.get("/runs").status_code == 200
    assert role_of(home.engine, "ann") is Role.VIEWER


def test_login_page_offers_oidc_only_when_configured(
    home: Visitors, engine: Engine, settings: Settings
) -> None:
    offered = parse_page(home.stranger().get("/login?next=/runs").text)
    other = make_visitors(engine, settings, "accounts").stranger()

    assert [one.text for one in offered.all("a", class_="btn")] == ["Sign in with 127.0.0.1"]
    assert "Sign in with" not in other.get("/login").text
    assert other.get("/login/oidc").status_code == 404


def test_authorization_request_uses_pkce_state_and_nonce(home: Visitors) -> None:
    sent = home.stranger().get("/login/oidc").headers["location"]
    asked = parse_qs(urlsplit(sent).query)

    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == ["http://testserver/login/oidc/done"]
    assert {len(asked[name][0]) for name in ("state", "nonce", "code_challenge")} == {43}


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS512"])
def test_id_token_with_disallowed_algorithm_is_rejected(
    home: Visitors, provider: Provider, algorithm: str
) -> None:
    provider.algorithm = algorithm

    answer = come(home.stranger(), provider)

    assert answer.status_code == 401
    assert "The ID token of 127.0.0.1 is not valid: " in answer.text
    assert role_of(home.engine, "ann") is None


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": ["studio", "another"], "azp": "another"},
        {"iss": "https://elsewhere.example.org"},
        {"nonce": "of another visit"},
        {"nonce": None},
        {"exp": int(time.time()) - 3600},
        {"exp": None},
        {"sub": None},
    ],
)
def test_id_token_with_invalid_claims_is_rejected(
    home: Visitors, provider: Provider, claims: dict[str, Any]
) -> None:
    provider.person = claims

    answer = come(home.stranger(), provider)

    assert answer.status_code == 401
    assert "The ID token of 127.0.0.1 is not valid: " in answer.text
    assert role_of(home.engine, "ann") is None


def test_callback_works_once_and_only_in_same_browser(home: Visitors, provider: Provider) -> None:
    browser, thief = home.stranger(), home.stranger()
    back = provider.sign_in(browser.get("/login/oidc").headers["location"])
    taken = provider.sign_in(thief.get("/login/oidc").headers["location"])

    assert browser.get(back).status_code == 303
    assert browser.get(back).status_code == 401
    assert home.stranger().get(taken).status_code == 401
    assert thief.get(taken).status_code == 401


def test_pending_sign_in_expires() -> None:
    now = [0.0]
    pending = PendingSignIns(clock=lambda: now[0])
    state, browser, _begun = pending.add("/")
    now[0] = PENDING_SECONDS + 1

    with pytest.raises(Exception, match="does not match a pending sign-in"):
        pending.take(state, browser)


def test_provider_error_is_shown(home: Visitors, provider: Provider) -> None:
    provider.refuses = "Your account is locked."

    answer = come(home.stranger(), provider)

    assert answer.status_code == 401
    assert "did not confirm who you are: Your account is locked." in answer.text


def test_unreachable_or_mismatched_issuer_is_reported(
    home: Visitors, provider: Provider, engine: Engine, settings: Settings
) -> None:
    provider.calls_itself = "https://elsewhere.example.org"
    renamed = home.stranger().get("/login/oidc")
    given = {"oidc_issuer": "http://127.0.0.1:9", "oidc_client_id": CLIENT}
    gone = make_visitors(engine, settings.model_copy(update=given), "accounts")
    plain = make_visitors(
        engine,
        settings.model_copy(update=given | {"oidc_issuer": "http://login.example.org"}),
        "accounts",
    )

    assert "reports a different issuer: https://elsewhere.example.org." in renamed.text
    assert "could not be reached" in gone.stranger().get("/login/oidc").text
    assert "must start with https://" in plain.stranger().get("/login/oidc").text


def test_groups_set_role_at_each_sign_in(
    engine: Engine, settings: Settings, provider: Provider
) -> None:
    home = built(engine, settings, provider, oidc_groups=GROUPS)
    roles = []
    for groups in (["crew", "chiefs"], ["crew"], ["guests"]):
        provider.person = {"groups": groups}
        answer = come(home.stranger(), provider)
        roles.append((answer.status_code, role_of(engine, "ann")))

    assert roles == [(303, Role.ADMINISTRATOR), (303, Role.MEMBER), (403, Role.MEMBER)]


def test_sign_in_without_allowed_group_ends_other_sessions(
    engine: Engine, settings: Settings, provider: Provider
) -> None:
    home = built(engine, settings, provider, oidc_groups=GROUPS)
    provider.person, browser = {"groups": ["crew"]}, home.stranger()
    come(browser, provider)
    provider.person = {}

    come(home.stranger(), provider)

    assert browser.get("/runs").status_code == 303


def test_unknown_oidc_user_is_rejected_unless_account_exists(
    engine: Engine, settings: Settings, provider: Provider
) -> None:
    home = built(engine, settings, provider)

    assert come(home.stranger(), provider).status_code == 403
    home.account("ann", Role.MEMBER)
    assert come(home.stranger(), provider).status_code == 303
    assert role_of(engine, "ann") is Role.MEMBER


def test_oidc_user_cannot_take_existing_account_name(home: Visitors, provider: Provider) -> None:
    """Names are chosen at some services: one must not make an administrator of who takes it."""
    with unit_of_work(home.engine) as db:
        root = accounts.get_by_name(db, "root")
        accounts.set_password(db, root, PASSWORD)
    provider.person = {"preferred_username": "root"}

    answer = come(home.stranger(), provider)

    assert answer.status_code == 409
    assert "Another account is named root." in answer.text


def test_renamed_oidc_user_keeps_account(home: Visitors, provider: Provider) -> None:
    come(home.stranger(), provider)
    provider.person = {"preferred_username": "anna"}

    assert come(home.stranger(), provider).status_code == 303
    assert role_of(home.engine, "anna") is None
