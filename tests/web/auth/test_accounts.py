"""People with accounts: the first of them, signing in, roles, and whose things are."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, Table
from sqlmodel import Session, SQLModel, select

from studio.db.accounts import LinkPurpose, Role, Scope
from studio.db.owners import Actor, acting_as
from studio.db.session import read_session, unit_of_work
from studio.errors import TooManyRequestsError
from studio.services.accounts import accounts, audit_log, login_sessions, passwords
from studio.settings import Settings
from studio.web.auth.login_throttle import (
    MAX_ENTRIES,
    MAX_FOR_ADDRESS,
    MAX_FOR_BOTH,
    WINDOW_SECONDS,
    LoginThrottle,
)
from tests.support import evaluated_runs
from tests.support.factories import make_finished_run
from tests.support.page_reader import parse_page
from tests.support.visitors import PASSWORD, Visitors, make_visitors

CHOSEN = {"password": PASSWORD, "again": PASSWORD}
RUN = {"name": "x", "recipe": {"base_model": "starter", "dataset": "starter"}}


@pytest.fixture
def home(engine: Engine, settings: Settings) -> Visitors:
    return make_visitors(engine, settings, "accounts")


@pytest.fixture(scope="module")
def hashed() -> str:
    """Hash the password once: it takes a while, as it should."""
    return passwords.hash_password(PASSWORD)


def add(home: Visitors, hashed: str, name: str = "ann", role: Role = Role.MEMBER) -> None:
    with unit_of_work(home.engine) as db:
        accounts.add(db, name, role).password = hashed


def issued(home: Visitors, purpose: LinkPurpose, number: int | None = None) -> str:
    with unit_of_work(home.engine) as db:
        return login_sessions.issue_link(db, purpose, number)


def test_unauthenticated_visitor_is_redirected_to_login(home: Visitors) -> None:
    answer = home.stranger().get("/runs?q=a%20b")

    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=/runs%3Fq%3Da%2520b"


def test_name_and_password_sign_in(home: Visitors, hashed: str) -> None:
    add(home, hashed)
    browser = home.stranger()

    answer = browser.post("/login", data={"name": "Ann", "password": PASSWORD, "next": "/runs?q=a"})

    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?q=a")
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("name", ["ann", "nobody"])
def test_login_error_does_not_reveal_which_part_was_wrong(
    home: Visitors, hashed: str, name: str
) -> None:
    add(home, hashed)

    answer = home.stranger().post("/login", data={"name": name, "password": "guessed it"})

    assert answer.status_code == 401
    assert "Wrong name or password." in parse_page(answer.text).text


def test_link_creates_first_administrator(home: Visitors) -> None:
    secret = issued(home, LinkPurpose.FIRST)
    browser = home.stranger()

    assert (
        "Create the first administrator" in parse_page(browser.get(f"/login?t={secret}").text).text
    )
    answer = browser.post("/login/password", data={"t": secret, "name": "Root"} | CHOSEN)

    assert answer.status_code == 303
    assert browser.get("/settings/people").status_code == 200


def test_first_account_link_fails_when_account_exists(home: Visitors) -> None:
    secret = issued(home, LinkPurpose.FIRST)
    home.account("root", Role.ADMINISTRATOR)

    form = {"t": secret, "name": "mallory"} | CHOSEN

    assert home.stranger().post("/login/password", data=form).status_code == 409


def test_password_link_is_bound_to_its_account(home: Visitors) -> None:
    number = home.account("ann", Role.MEMBER)
    secret = issued(home, LinkPurpose.PASSWORD, number)

    home.stranger().post("/login/password", data={"t": secret, "name": "root"} | CHOSEN)

    with read_session(home.engine) as db:
        kept = {one.name: bool(one.password) for one in accounts.list_all(db)}
    assert kept == {"ann": True}


@pytest.mark.parametrize(
    "form", [{"again": "something else"}, {"password": "short", "again": "short"}]
)
def test_rejected_password_keeps_link_valid(home: Visitors, form: dict[str, str]) -> None:
    secret = issued(home, LinkPurpose.PASSWORD, home.account("ann", Role.MEMBER))

    answer = home.stranger().post("/login/password", data={"t": secret} | CHOSEN | form)

    assert answer.status_code == 422
    assert home.stranger().get(f"/login?t={secret}").status_code == 200


def test_password_change_signs_out_other_browsers(home: Visitors, hashed: str) -> None:
    add(home, hashed)
    mine, other = home.person("ann", Role.MEMBER), home.person("ann", Role.MEMBER)
    chosen = {"password": "another row of words", "again": "another row of words"}

    answer = mine.post("/settings/access/password", data={"old": PASSWORD} | chosen)

    assert answer.headers["location"] == "/settings/access#password"
    assert [one.get("/").status_code for one in (mine, other)] == [200, 303]


def test_password_change_requires_current_password(home: Visitors, hashed: str) -> None:
    add(home, hashed)
    form = {"old": "a guess at it"} | CHOSEN

    answer = home.person("ann", Role.MEMBER).post("/settings/access/password", data=form)

    assert answer.status_code == 401


def test_too_many_login_attempts_return_429(home: Visitors) -> None:
    home.app.state.tries = LoginThrottle(lambda: 0.0)
    for _ in range(MAX_FOR_BOTH):
        home.app.state.tries.check_and_count("ann", "testclient")

    answer = home.stranger().post("/login", data={"name": "ann", "password": "x"})

    assert answer.status_code == 429


def test_login_is_allowed_again_after_window() -> None:
    clock = [0.0]
    tries = LoginThrottle(lambda: clock[0])
    for _ in range(MAX_FOR_BOTH):
        tries.check_and_count("ann", "10.0.0.1")
    clock[0] = WINDOW_SECONDS + 1

    tries.check_and_count("ann", "10.0.0.1")


def test_many_names_from_one_address_are_throttled() -> None:
    tries = LoginThrottle(lambda: 0.0)
    for number in range(MAX_FOR_ADDRESS):
        tries.check_and_count(f"name{number}", "10.0.0.1")

    with pytest.raises(TooManyRequestsError):
        tries.check_and_count("ann", "10.0.0.1")


def test_throttled_address_does_not_block_same_name_elsewhere() -> None:
    tries = LoginThrottle(lambda: 0.0)
    for _ in range(MAX_FOR_BOTH):
        tries.check_and_count("ann", "10.6.6.6")

    tries.check_and_count("ann", "10.0.0.1")


def test_login_throttle_memory_is_bounded() -> None:
    tries = LoginThrottle(lambda: 0.0)
    for number in range(MAX_ENTRIES):
        tries.check_and_count(f"name{number}", f"address{number}")

    assert len(tries) == MAX_ENTRIES


def test_members_cannot_change_runs_of_others(home: Visitors) -> None:
    ann, bob = home.person("ann", Role.MEMBER), home.person("bob", Role.MEMBER)
    made = ann.post("/api/v1/runs", json=RUN).json()["id"]

    refused = bob.delete(f"/api/v1/runs/{made}")

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert bob.post("/runs/bulk", data={"act": "trash", "run": str(made)}).status_code == 403
    assert bob.get(f"/api/v1/runs/{made}").status_code == 200
    assert ann.post(f"/api/v1/runs/{made}/cancel").status_code == 200


def test_administrator_can_change_runs_of_others(home: Visitors) -> None:
    made = home.person("ann", Role.MEMBER).post("/api/v1/runs", json=RUN).json()["id"]

    root = home.person("root", Role.ADMINISTRATOR)

    assert root.post(f"/api/v1/runs/{made}/cancel").status_code == 200


def test_members_can_change_unowned_dataset(home: Visitors) -> None:
    answer = home.person("bob", Role.MEMBER).patch("/api/v1/datasets/1", json={"name": "ours"})

    assert answer.status_code == 200


def test_runs_of_removed_user_become_shared(home: Visitors) -> None:
    ann, root = home.person("ann", Role.MEMBER), home.person("root", Role.ADMINISTRATOR)
    made = ann.post("/api/v1/runs", json=RUN).json()["id"]

    root.post("/settings/people/1/remove")

    assert ann.get("/").status_code == 303
    assert home.person("bob", Role.MEMBER).post(f"/api/v1/runs/{made}/cancel").status_code == 200


@pytest.mark.parametrize(("verb", "form"), [("remove", {}), ("role", {"role": "member"})])
def test_last_administrator_cannot_be_removed_or_demoted(
    home: Visitors, verb: str, form: dict[str, str]
) -> None:
    root = home.person("root", Role.ADMINISTRATOR)

    assert root.post(f"/settings/people/1/{verb}", data=form).status_code == 409


def test_administrator_adds_user_and_gets_password_link(home: Visitors) -> None:
    root = home.person("root", Role.ADMINISTRATOR)

    page = parse_page(root.post("/settings/people", data={"name": "ann", "role": "viewer"}).text)
    link = page.one(id="made-secret").attributes["value"].removeprefix("http://testserver")

    assert 'value="ann"' in home.stranger().get(link).text


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "a\u202eb", "x" * 81, "<b>"])
def test_invalid_account_names_are_rejected(home: Visitors, name: str) -> None:
    root = home.person("root", Role.ADMINISTRATOR)

    assert root.post("/settings/people", data={"name": name}).status_code == 422


def test_changes_are_audit_logged(home: Visitors) -> None:
    ann, root = home.person("ann", Role.MEMBER), home.person("root", Role.ADMINISTRATOR)
    ann.post("/api/v1/runs", json=RUN)
    ann.post("/settings/people", data={"name": "x"})
    ann.get("/runs")

    rows = parse_page(root.get("/settings/log").text).one("tbody").all("tr")

    told = [" ".join(row.text.split()) for row in rows]
    assert ["403" in told[0], "201" in told[1], len(told)] == [True, True, 2]
    assert "POST /settings/people" in told[0]


def test_failed_sign_ins_are_audit_logged(home: Visitors) -> None:
    home.stranger().post("/login", data={"name": "Mallory", "password": "x"})

    page = home.person("root", Role.ADMINISTRATOR).get("/settings/log?who=mallory")

    assert "401" in parse_page(page.text).one("tbody").text


def test_session_from_link_mode_is_rejected_with_accounts(home: Visitors) -> None:
    owner = make_visitors(home.engine, home.settings, "link").owner()
    browser = home.stranger()
    browser.cookies.set("studio_80", owner.cookies["studio_80"])

    assert browser.get("/").status_code == 303


def test_token_without_account_is_rejected(home: Visitors) -> None:
    assert home.program(Scope.ADMIN).get("/api/v1/runs").status_code == 401


def test_server_error_is_audit_logged(home: Visitors) -> None:
    ann = home.person("ann", Role.MEMBER)
    quiet = TestClient(home.app, raise_server_exceptions=False, cookies=ann.cookies)
    home.app.state.seats = None

    answer = quiet.post("/api/v1/runs", json=RUN)

    with read_session(home.engine) as db:
        assert [one.status for one in audit_log.newest(db, 5)] == [answer.status_code] == [500]


def test_everything_of_a_removed_account_is_shared(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        accounts.add(db, "admin", Role.ADMINISTRATOR)
        ann = accounts.add(db, "ann", Role.MEMBER)
        db.flush()
        with acting_as(Actor(account_id=ann.id)):
            run = make_finished_run(db, adapter={"kind": "lora"})
            evaluated_runs.lay_out(db, settings, run)
            answers = ["yes"] * 4
            made = evaluated_runs.evaluate(db, settings, run.id or 0, answers, answers, answers)
            evaluated_runs.judge(db, settings, made, [evaluated_runs.TUNED_WINS] * 4)
        owned = [table for table in SQLModel.metadata.sorted_tables if "owner_id" in table.c]
        had = [table.name for table in owned if _owners(db, table) == {ann.id}]
        accounts.remove(db, ann)

        assert {"run", "evaluation", "judgement", "chore"} <= set(had)
        assert set().union(*(_owners(db, table) for table in owned)) == {None}


def _owners(db: Session, table: Table) -> set[int | None]:
    return set(db.exec(select(table.c.owner_id)).all())
