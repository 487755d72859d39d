"""Accounts: names, roles and passwords."""

import re
from collections.abc import Sequence

from sqlmodel import Session, col, delete, func, select

from studio.db.accounts import Account, OneTimeLink, Role, Scope
from studio.errors import ConflictError, InvalidError, NotFoundError, UnauthorizedError
from studio.services.accounts import login_sessions, owners, passwords

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,79}", re.ASCII)

ROLE_SCOPES = {
    Role.VIEWER: Scope.READ,
    Role.MEMBER: Scope.MANAGE,
    Role.ADMINISTRATOR: Scope.ADMIN,
}
"""The scope of each role; a member manages only their own or shared things."""


def list_all(db: Session) -> Sequence[Account]:
    return db.exec(select(Account).order_by(Account.name)).all()


def has_any(db: Session) -> bool:
    return db.exec(select(Account.id)).first() is not None


def get(db: Session, account_id: int) -> Account:
    account = db.get(Account, account_id)
    if account is None:
        raise NotFoundError("This account does not exist.", hint="It may have been removed.")
    return account


def find(db: Session, name: str) -> Account | None:
    return db.exec(select(Account).where(Account.name == name.strip().lower())).first()


def get_by_name(db: Session, name: str) -> Account:
    account = find(db, name)
    if account is None:
        raise NotFoundError(
            f"There is no account named {name}.", hint="List them with `studio accounts list`."
        )
    return account


def add(db: Session, name: str, role: Role) -> Account:
    """Add an account, whose user sets a password through a one-time link.

    Raises:
        ConflictError: The name is taken.
        InvalidError: The name is not valid.

    """
    name = name.strip().lower()
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidError(
            "Use letters, digits and . _ @ + - and start with a letter or digit.",
            hint="At most 80 characters. An email address works, too.",
            param="name",
        )
    if db.exec(select(Account.id).where(Account.name == name)).first():
        raise ConflictError(f"An account named {name} already exists.", param="name")
    account = Account(name=name, role=role)
    db.add(account)
    db.flush()
    return account


def set_password(
    db: Session, account: Account, hashed: str, *, except_session: int | None = None
) -> None:
    """Set a password and end all login sessions of the account, except one."""
    account.password = hashed
    login_sessions.end_others(db, account.id, except_session)


def authenticate(account: Account | None, password: str) -> Account:
    """Return the account if the password is correct.

    Raises:
        UnauthorizedError: The password is wrong or the account does not exist; the message does
            not say which.

    """
    if (
        not passwords.verify_password(password, account.password if account else "")
        or account is None
    ):
        raise UnauthorizedError(
            "Wrong name or password.",
            hint="Forgot your password? Ask an administrator for a link to set a new one.",
        )
    return account


def change_role(db: Session, account: Account, role: Role) -> None:
    """Change an account's role.

    Raises:
        ConflictError: No administrator would be left.

    """
    if role is not Role.ADMINISTRATOR:
        _require_another_administrator(db, account)
    account.role = role


def remove(db: Session, account: Account) -> None:
    """Remove an account; what it owned becomes shared.

    Raises:
        ConflictError: No administrator would be left.

    """
    _require_another_administrator(db, account)
    owners.release_all(db, account.id or 0)
    db.exec(delete(OneTimeLink).where(col(OneTimeLink.account_id) == account.id))
    db.delete(account)
    db.flush()


def _require_another_administrator(db: Session, account: Account) -> None:
    administrators = select(func.count()).where(Account.role == Role.ADMINISTRATOR)
    if account.role is Role.ADMINISTRATOR and db.exec(administrators).one() == 1:
        raise ConflictError(
            f"{account.name} is the only administrator.",
            hint="Make another account an administrator first.",
        )
