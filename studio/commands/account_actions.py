"""The implementation of `studio accounts`."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from sqlalchemy import Engine

from studio.commands import login_link
from studio.db.accounts import Role
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import accounts, audit_log
from studio.services.operations import home
from studio.settings import Settings


def add(name: str, role: Role) -> None:
    with _open_home() as (settings, engine):
        with unit_of_work(engine) as db:
            account = accounts.add(db, name, role)
        link_ = login_link.password_link(engine, login_link.studio_url(settings), account, "add")
    typer.echo(f"Link for {account.name} to choose a password, valid for one day:\n{link_}")


def print_accounts() -> None:
    with _open_home() as (_settings, engine), read_session(engine) as db:
        for account in accounts.list_all(db):
            waits = "" if account.password else ", no password yet"
            typer.echo(f"{account.name}  {account.role.value}{waits}")


def link(name: str) -> None:
    with _open_home() as (settings, engine):
        with read_session(engine) as db:
            account = accounts.get_by_name(db, name)
        typer.echo(
            login_link.password_link(engine, login_link.studio_url(settings), account, "link")
        )


def remove(name: str) -> None:
    with _open_home() as (_settings, engine), unit_of_work(engine) as db:
        account = accounts.get_by_name(db, name)
        accounts.remove(db, account)
        audit_log.record(db, login_link.audit_entry("remove", account.name))
    typer.echo(f"Removed {account.name}.")


@contextmanager
def _open_home() -> Iterator[tuple[Settings, Engine]]:
    settings = Settings()
    engine = home.open_home(settings)
    try:
        yield settings, engine
    finally:
        engine.dispose()
