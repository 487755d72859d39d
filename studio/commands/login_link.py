"""Sign-in links and address checks for `studio serve` and `studio link`."""

import os
from dataclasses import dataclass

import typer
from sqlalchemy import Engine

from studio.db.accounts import Account, AuditEntry, LinkPurpose
from studio.db.session import unit_of_work
from studio.errors import ConflictError, InvalidError
from studio.services.accounts import accounts, api_tokens, audit_log, login_sessions
from studio.services.operations import home
from studio.services.storage import locks
from studio.settings import LOOPBACK_HOSTS, Settings


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        display_host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 -- compared, not bound
        return f"http://{f'[{display_host}]' if ':' in display_host else display_host}:{self.port}/"

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK_HOSTS


def require_safe_address(settings: Settings, address: Address) -> None:
    """Refuse to listen for other machines without accounts and allowed host names.

    Raises:
        InvalidError: accounts or allowed host names are not set.

    """
    if address.is_local:
        return
    if settings.sign_in != "accounts":
        raise InvalidError(
            f"On {address.host}, other machines can reach the studio, but it has no accounts.",
            hint="Set STUDIO_SIGN_IN=accounts, or listen on 127.0.0.1. See docs/security.md.",
        )
    if "allowed_hosts" not in settings.model_fields_set:
        raise InvalidError(
            f"On {address.host}, other machines can reach the studio, but its names are not set.",
            hint="Set them, for example STUDIO_ALLOWED_HOSTS=studio.example.org,localhost",
        )


def restrict_umask() -> None:
    """Keep files of this process and its children private to the current user."""
    os.umask(0o077)


def prepare_sign_in(engine: Engine, settings: Settings, url: str) -> str:
    """Prepare sign-in. Return the URL to open, with a one-time link if it needs one."""
    with unit_of_work(engine) as db:
        audit_log.prune(db, settings.audit_days)
    match settings.sign_in:
        case "none":
            typer.secho(
                "  ! Sign-in is off: every user and program on this machine has full access.",
                fg="yellow",
                err=True,
            )
            return url
        case "link":
            api_tokens.ensure_local_token(engine, settings.api_token)
            return _login_url(engine, url, LinkPurpose.ENTER)
        case "accounts":
            with unit_of_work(engine) as db:
                is_empty = not accounts.has_any(db)
            return _login_url(engine, url, LinkPurpose.FIRST) if is_empty else url


def print_login_link(settings: Settings) -> None:
    """Print a new sign-in link for the studio that runs on this home.

    Raises:
        ConflictError: the studio uses accounts, or needs no sign-in.

    """
    engine = home.open_home(settings)
    try:
        url = studio_url(settings)
        with unit_of_work(engine) as db:
            has_people = settings.sign_in == "accounts" and accounts.has_any(db)
        if settings.sign_in == "none" or has_people:
            raise ConflictError(
                "This studio uses accounts, not sign-in links."
                if has_people
                else "This studio does not require sign-in.",
                hint="For a new password: studio accounts link NAME" if has_people else "",
            )
        purpose = LinkPurpose.FIRST if settings.sign_in == "accounts" else LinkPurpose.ENTER
        typer.echo(_login_url(engine, url, purpose))
    finally:
        engine.dispose()


def studio_url(settings: Settings) -> str:
    """Return the URL of the studio that runs on this home, or the default URL."""
    holder_url = locks.describe_holder(settings.home, "web").rpartition(" ")[2]
    running = holder_url if holder_url.startswith("http") else Address("127.0.0.1", 8000).url
    return settings.public_url.rstrip("/") + "/" if settings.public_url else running


def password_link(engine: Engine, url: str, account: Account, did: str) -> str:
    """Return a link to choose a password, and record it in the audit log."""
    with unit_of_work(engine) as db:
        secret = login_sessions.issue_link(db, LinkPurpose.PASSWORD, account.id)
        audit_log.record(db, audit_entry(did, account.name))
    return f"{url}login?t={secret}"


def audit_entry(did: str, name: str) -> AuditEntry:
    """Return the audit log entry of a command."""
    return AuditEntry(
        who="the command line",
        method="RUN",
        route=f"studio accounts {did}",
        subject=name,
        permission="admin",
        status=0,
    )


def _login_url(engine: Engine, url: str, purpose: LinkPurpose) -> str:
    with unit_of_work(engine) as db:
        return f"{url}login?t={login_sessions.issue_link(db, purpose)}"
