"""The implementation of `studio accounts`."""

import typer

from studio.commands import login_link
from studio.commands.local_home import open_home
from studio.db.accounts import Role
from studio.db.session import read_session, unit_of_work
from studio.services.accounts import accounts, audit_log


def add(name: str, role: Role) -> None:
    with open_home() as (settings, engine):
        with unit_of_work(engine) as db:
            account = accounts.add(db, name, role)
        link_ = login_link.password_link(engine, login_link.studio_url(settings), account, "add")
    typer.echo(f"Link for {account.name} to choose a password, valid for one day:\n{link_}")


def print_accounts() -> None:
    with open_home() as (_settings, engine), read_session(engine) as db:
        for account in accounts.list_all(db):
            waits = "" if account.password else ", no password yet"
            typer.echo(f"{account.name}  {account.role.value}{waits}")


def link(name: str) -> None:
    with open_home() as (settings, engine):
        with read_session(engine) as db:
            account = accounts.get_by_name(db, name)
        typer.echo(
            login_link.password_link(engine, login_link.studio_url(settings), account, "link")
        )


def remove(name: str) -> None:
    with open_home() as (_settings, engine), unit_of_work(engine) as db:
        account = accounts.get_by_name(db, name)
        accounts.remove(db, account)
        audit_log.record(db, login_link.audit_entry("remove", account.name))
    typer.echo(f"Removed {account.name}.")
