"""A studio of one's own: it lets in whoever opens its link, and nobody else."""

import stat
from datetime import timedelta
from http.cookies import SimpleCookie

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from sqlmodel import select

from studio.db.accounts import LoginSession, OneTimeLink
from studio.db.column_types import now
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import api_tokens, login_sessions
from studio.settings import Settings
from studio.web.accounts.accounts_page import local_path
from studio.web.auth import permissions
from tests.support.page_reader import parse_page
from tests.support.visitors import Visitors, make_visitors


@pytest.fixture
def home(engine: Engine, settings: Settings) -> Visitors:
    return make_visitors(engine, settings, "link")


def test_unauthenticated_page_explains_sign_in_link(home: Visitors) -> None:
    answer = home.stranger().get("/runs")

    assert answer.status_code == 401
    assert "studio link" in parse_page(answer.text).text


def test_api_request_without_token_returns_401(home: Visitors) -> None:
    answer = home.stranger().get("/api/v1/runs")

    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "unauthorized"


def test_partial_request_redirects_to_login(home: Visitors) -> None:
    headers = {"HX-Request-Type": "partial", "HX-Current-URL": "http://testserver/runs/3?x=1"}

    answer = home.stranger().get("/queue/others", headers=headers)

    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login?next=/runs/3")


def test_body_of_unauthenticated_request_is_not_parsed(home: Visitors) -> None:
    answer = home.stranger().post("/api/v1/runs", content=b"{" * 100)

    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/health", "/static/css/base.css", "/login"])
def test_open_routes_need_no_sign_in(home: Visitors, path: str) -> None:
    assert home.stranger().get(path).status_code != 401


def test_unauthenticated_requests_do_not_reveal_which_pages_exist(home: Visitors) -> None:
    answers = [home.stranger().get(path).status_code for path in ("/nowhere", "/queue")]

    assert answers == [401, 401]


def test_link_signs_in_browser(home: Visitors) -> None:
    browser = home.stranger()

    answer = browser.get(home.link())

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert browser.get("/").status_code == 200


def test_link_works_once(home: Visitors) -> None:
    link = home.link()
    home.stranger().get(link)

    answer = home.stranger().get(link)

    assert answer.status_code == 401
    assert "This link was already used" in parse_page(answer.text).text


def test_signed_in_browser_can_reopen_link(home: Visitors) -> None:
    browser, link = home.stranger(), home.link()
    browser.get(link)

    assert browser.get(link).headers["location"] == "/"


def test_expired_link_is_rejected(home: Visitors) -> None:
    link = home.link()
    with unit_of_work(home.engine) as db:
        db.exec(select(OneTimeLink)).one().expires_at = now() - timedelta(seconds=1)

    assert home.stranger().get(link).status_code == 401


def test_cookie_is_http_only_and_same_site_lax(home: Visitors) -> None:
    cookie = SimpleCookie(home.stranger().get(home.link()).headers["set-cookie"])["studio_80"]

    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "lax", "/")
    assert cookie["secure"] == ""


def test_cookie_is_secure_under_https(home: Visitors) -> None:
    browser = TestClient(home.app, base_url="https://testserver", follow_redirects=False)
    answer = browser.get(home.link())

    cookie = SimpleCookie(answer.headers["set-cookie"])["__Host-studio_443"]
    assert cookie["secure"] is True
    assert browser.get("/").status_code == 200


def test_only_session_cookie_hash_is_stored(home: Visitors) -> None:
    browser = home.owner()
    secret = browser.cookies["studio_80"]

    with read_session(home.engine) as db:
        kept = db.exec(select(LoginSession)).one()

    assert secret not in kept.model_dump_json()
    assert len(kept.sha256) == 64


@pytest.mark.parametrize(
    ("field", "ago"),
    [("seen_at", login_sessions.IDLE_TIMEOUT), ("began_at", login_sessions.ABSOLUTE_TIMEOUT)],
)
def test_session_expires_after_timeouts(home: Visitors, field: str, ago: timedelta) -> None:
    browser = home.owner()
    with unit_of_work(home.engine) as db:
        setattr(db.exec(select(LoginSession)).one(), field, now() - ago - timedelta(seconds=1))

    assert browser.get("/").status_code == 401


def test_activity_extends_session(home: Visitors) -> None:
    browser = home.owner()
    with unit_of_work(home.engine) as db:
        db.exec(select(LoginSession)).one().seen_at = now() - login_sessions.IDLE_TIMEOUT / 2
    browser.get("/")

    with read_session(home.engine) as db:
        assert db.exec(select(LoginSession)).one().seen_at > now() - timedelta(minutes=1)


def test_signing_out_ends_session(home: Visitors) -> None:
    browser = home.owner()
    secret = browser.cookies["studio_80"]
    browser.post("/logout")

    browser.cookies.set("studio_80", secret)

    assert browser.get("/").status_code == 401


def test_another_browser_can_be_signed_out(home: Visitors) -> None:
    mine, other = home.owner(), home.owner()

    mine.post("/settings/access/browsers/2")

    assert (mine.get("/").status_code, other.get("/").status_code) == (200, 401)


def test_all_other_browsers_can_be_signed_out(home: Visitors) -> None:
    mine, others = home.owner(), [home.owner(), home.owner()]

    mine.post("/settings/access/browsers")

    assert [one.get("/").status_code for one in (mine, *others)] == [200, 401, 401]


@pytest.mark.parametrize(
    "there",
    ["//evil", "https://evil", "/\\evil", "\\\\evil", "javascript:alert(1)", "/a\nb", "runs", ""],
)
def test_login_does_not_redirect_to_unsafe_targets(there: str) -> None:
    assert local_path(there) == "/"


def test_login_redirects_to_requested_page() -> None:
    assert local_path("/runs/3?tab=log") == "/runs/3?tab=log"


def test_local_token_file_authenticates_and_is_private(home: Visitors) -> None:
    file = home.settings.api_token
    api_tokens.ensure_local_token(home.engine, file)
    headers = {"Authorization": f"Bearer {file.read_text().strip()}"}

    assert home.stranger().get("/api/v1/runs", headers=headers).status_code == 200
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_valid_local_token_is_kept(home: Visitors) -> None:
    file = home.settings.api_token
    api_tokens.ensure_local_token(home.engine, file)
    first = file.read_text()
    api_tokens.ensure_local_token(home.engine, file)

    assert file.read_text() == first


def test_invalid_local_token_is_replaced(home: Visitors) -> None:
    file = home.settings.api_token
    file.write_text("sft_1_nothing")
    api_tokens.ensure_local_token(home.engine, file)

    with read_session(home.engine) as db:
        assert api_tokens.find(db, file.read_text().strip()) is not None


def test_invalid_token_is_rejected_despite_valid_cookie(home: Visitors) -> None:
    answer = home.owner().get("/api/v1/runs", headers={"Authorization": "Bearer sft_1_x"})

    assert answer.status_code == 401


def test_sign_in_mode_none_needs_no_credentials(engine: Engine, settings: Settings) -> None:
    client = make_visitors(engine, settings, "none").stranger()

    answer = client.get("/api/v1/runs", headers={"Authorization": "Bearer whatever"})

    assert (answer.status_code, client.get("/").status_code) == (200, 200)


def test_route_without_permission_row_raises_lookup_error() -> None:
    router = APIRouter()
    router.add_api_route("/forgotten", lambda: None)

    with pytest.raises(LookupError, match="GET /forgotten has no row"):
        permissions.require_rows(router)
