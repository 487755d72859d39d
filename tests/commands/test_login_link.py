"""How people get in, from the terminal: what is refused, and which links are printed."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from studio.cli import app
from studio.commands import login_link
from studio.commands.login_link import Address
from studio.db.accounts import LinkPurpose, Role
from studio.db.column_types import now
from studio.db.session import read_session, unit_of_work
from studio.errors import ConflictError, InvalidError
from studio.services.accounts import accounts, audit_log, login_sessions
from studio.settings import Settings

HERE, EVERYWHERE = Address("127.0.0.1", 8000), Address("0.0.0.0", 8000)  # noqa: S104 -- not bound


def closed(settings: Settings, sign_in: str) -> Settings:
    return settings.model_copy(update={"sign_in": sign_in})


@pytest.mark.parametrize("sign_in", ["none", "link"])
def test_public_address_is_rejected_without_accounts(settings: Settings, sign_in: str) -> None:
    with pytest.raises(InvalidError, match="has no accounts"):
        login_link.require_safe_address(closed(settings, sign_in), EVERYWHERE)


def test_public_address_is_rejected_without_host_names() -> None:
    with pytest.raises(InvalidError, match="its names are not set"):
        login_link.require_safe_address(Settings(sign_in="accounts"), EVERYWHERE)


def test_public_address_is_allowed_with_accounts_and_host_name(settings: Settings) -> None:
    login_link.require_safe_address(closed(settings, "accounts"), EVERYWHERE)


@pytest.mark.parametrize("sign_in", ["none", "link", "accounts"])
def test_local_address_allows_every_sign_in_mode(sign_in: str) -> None:
    login_link.require_safe_address(closed(Settings(), sign_in), HERE)


@pytest.mark.parametrize(
    ("sign_in", "purpose"), [("link", LinkPurpose.ENTER), ("accounts", LinkPurpose.FIRST)]
)
def test_startup_creates_login_link(
    engine: Engine, settings: Settings, sign_in: str, purpose: LinkPurpose
) -> None:
    url = login_link.prepare_sign_in(engine, closed(settings, sign_in), HERE.url)

    address, _, secret = url.partition("login?t=")
    with read_session(engine) as db:
        assert login_sessions.verify_link(db, secret).purpose == purpose
    assert address == "http://127.0.0.1:8000/"


def test_login_link_is_not_created_when_accounts_exist(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        accounts.add(db, "ann", Role.ADMINISTRATOR)

    assert login_link.prepare_sign_in(engine, closed(settings, "accounts"), HERE.url) == HERE.url
    with pytest.raises(ConflictError, match="This studio uses accounts, not sign-in links"):
        login_link.print_login_link(closed(settings, "accounts"))


def test_startup_warns_when_sign_in_is_off(
    engine: Engine, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    login_link.prepare_sign_in(engine, closed(settings, "none"), HERE.url)

    assert "Sign-in is off" in capsys.readouterr().err


def test_login_link_command_prints_valid_link(
    engine: Engine, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    login_link.print_login_link(closed(settings, "link"))

    with read_session(engine) as db:
        secret = capsys.readouterr().out.strip().partition("?t=")[2]
        assert login_sessions.verify_link(db, secret).purpose is LinkPurpose.ENTER


def test_account_is_added_listed_and_removed(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_HOME", str(settings.home))

    told = [
        CliRunner().invoke(app, ["accounts", *words]).output
        for words in (
            ["add", "Ann", "--role", "viewer"],
            ["list"],
            ["link", "ann"],
            ["remove", "ann"],
            ["list"],
        )
    ]

    with read_session(engine) as db:
        noted = [(one.route, one.subject) for one in audit_log.newest(db, 10)]
    assert "/login?t=" in told[0]
    assert told[1] == "ann  viewer, no password yet\n"
    assert "/login?t=" in told[2]
    assert told[3:] == ["Removed ann.\n", ""]
    assert noted == [(f"studio accounts {verb}", "ann") for verb in ("remove", "link", "add")]


def test_startup_deletes_old_audit_entries(engine: Engine, settings: Settings) -> None:
    with unit_of_work(engine) as db:
        for days in (1, 200):
            deed = login_link.audit_entry("add", "ann")
            deed.at = now() - timedelta(days=days)
            audit_log.record(db, deed)

    login_link.prepare_sign_in(engine, settings, HERE.url)

    with read_session(engine) as db:
        assert len(audit_log.newest(db, 10)) == 1
