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
from studio.web.auth.route_table import RouteTable
from tests.support.page_reader import parse_page
from tests.support.visitors import Visitors, make_visitors


@pytest.fixture
def home(engine: Engine, settings: Settings) -> Visitors:
    return make_visitors(engine, settings, "link")


def test_a_stranger_is_told_how_to_come_in(home: Visitors) -> None:
    answer = home.stranger().get("/runs")

    assert answer.status_code == 401
    assert "studio link" in parse_page(answer.text).text


def test_a_program_without_a_token_is_told_so(home: Visitors) -> None:
    answer = home.stranger().get("/api/v1/runs")

    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "unauthorized"


def test_a_part_of_a_page_sends_the_browser_to_the_door(home: Visitors) -> None:
    headers = {"HX-Request-Type": "partial", "HX-Current-URL": "http://testserver/runs/3?x=1"}

    answer = home.stranger().get("/queue/others", headers=headers)

    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login?next=/runs/3")


def test_what_a_stranger_sends_is_not_read(home: Visitors) -> None:
    answer = home.stranger().post("/api/v1/runs", content=b"{" * 100)

    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/health", "/static/css/base.css", "/login"])
def test_some_things_are_anybodys(home: Visitors, path: str) -> None:
    assert home.stranger().get(path).status_code != 401


def test_nobody_learns_which_pages_there_are(home: Visitors) -> None:
    answers = [home.stranger().get(path).status_code for path in ("/nowhere", "/queue")]

    assert answers == [401, 401]


def test_the_link_lets_one_browser_in(home: Visitors) -> None:
    browser = home.stranger()

    answer = browser.get(home.link())

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert browser.get("/").status_code == 200


def test_the_link_works_once(home: Visitors) -> None:
    link = home.link()
    home.stranger().get(link)

    answer = home.stranger().get(link)

    assert answer.status_code == 401
    assert "This link was already used" in parse_page(answer.text).text


def test_who_is_in_may_open_the_link_again(home: Visitors) -> None:
    browser, link = home.stranger(), home.link()
    browser.get(link)

    assert browser.get(link).headers["location"] == "/"


def test_an_old_link_works_no_more(home: Visitors) -> None:
    link = home.link()
    with unit_of_work(home.engine) as db:
        db.exec(select(OneTimeLink)).one().expires_at = now() - timedelta(seconds=1)

    assert home.stranger().get(link).status_code == 401


def test_no_script_reads_the_cookie_and_no_other_site_sends_it(home: Visitors) -> None:
    cookie = SimpleCookie(home.stranger().get(home.link()).headers["set-cookie"])["studio_80"]

    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "lax", "/")
    assert cookie["secure"] == ""


def test_under_https_the_cookie_stays_there(home: Visitors) -> None:
    browser = TestClient(home.app, base_url="https://testserver", follow_redirects=False)
    answer = browser.get(home.link())

    cookie = SimpleCookie(answer.headers["set-cookie"])["__Host-studio_443"]
    assert cookie["secure"] is True
    assert browser.get("/").status_code == 200


def test_the_cookie_is_kept_as_a_hash_only(home: Visitors) -> None:
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
def test_a_browser_is_shown_out_when_it_is_time(home: Visitors, field: str, ago: timedelta) -> None:
    browser = home.owner()
    with unit_of_work(home.engine) as db:
        setattr(db.exec(select(LoginSession)).one(), field, now() - ago - timedelta(seconds=1))

    assert browser.get("/").status_code == 401


def test_who_is_seen_stays(home: Visitors) -> None:
    browser = home.owner()
    with unit_of_work(home.engine) as db:
        db.exec(select(LoginSession)).one().seen_at = now() - login_sessions.IDLE_TIMEOUT / 2
    browser.get("/")

    with read_session(home.engine) as db:
        assert db.exec(select(LoginSession)).one().seen_at > now() - timedelta(minutes=1)


def test_who_signs_out_is_out(home: Visitors) -> None:
    browser = home.owner()
    secret = browser.cookies["studio_80"]
    browser.post("/logout")

    browser.cookies.set("studio_80", secret)

    assert browser.get("/").status_code == 401


def test_another_browser_can_be_shown_out(home: Visitors) -> None:
    mine, other = home.owner(), home.owner()

    mine.post("/settings/access/browsers/2")

    assert (mine.get("/").status_code, other.get("/").status_code) == (200, 401)


def test_all_other_browsers_can_be_shown_out(home: Visitors) -> None:
    mine, others = home.owner(), [home.owner(), home.owner()]

    mine.post("/settings/access/browsers")

    assert [one.get("/").status_code for one in (mine, *others)] == [200, 401, 401]


@pytest.mark.parametrize(
    "there",
    ["//evil", "https://evil", "/\\evil", "\\\\evil", "javascript:alert(1)", "/a\nb", "runs", ""],
)
def test_the_door_leads_nowhere_else(there: str) -> None:
    assert local_path(there) == "/"


def test_the_door_leads_back() -> None:
    assert local_path("/runs/3?tab=log") == "/runs/3?tab=log"


def test_programs_of_the_same_user_find_a_token(home: Visitors) -> None:
    file = home.settings.api_token
    api_tokens.ensure_local_token(home.engine, file)
    headers = {"Authorization": f"Bearer {file.read_text().strip()}"}

    assert home.stranger().get("/api/v1/runs", headers=headers).status_code == 200
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_good_token_in_the_home_is_kept(home: Visitors) -> None:
    file = home.settings.api_token
    api_tokens.ensure_local_token(home.engine, file)
    first = file.read_text()
    api_tokens.ensure_local_token(home.engine, file)

    assert file.read_text() == first


def test_a_token_in_the_home_that_is_none_is_made_anew(home: Visitors) -> None:
    file = home.settings.api_token
    file.write_text("sft_1_nothing")
    api_tokens.ensure_local_token(home.engine, file)

    with read_session(home.engine) as db:
        assert api_tokens.find(db, file.read_text().strip()) is not None


def test_a_wrong_token_is_refused_whatever_the_cookie_says(home: Visitors) -> None:
    answer = home.owner().get("/api/v1/runs", headers={"Authorization": "Bearer sft_1_x"})

    assert answer.status_code == 401


def test_a_studio_without_sign_in_asks_for_nothing(engine: Engine, settings: Settings) -> None:
    client = make_visitors(engine, settings, "none").stranger()

    answer = client.get("/api/v1/runs", headers={"Authorization": "Bearer whatever"})

    assert (answer.status_code, client.get("/").status_code) == (200, 200)


def test_a_route_without_a_row_keeps_the_studio_from_starting() -> None:
    router = APIRouter()
    router.add_api_route("/forgotten", lambda: None)

    with pytest.raises(LookupError, match="GET /forgotten has no row"):
        RouteTable([router])
