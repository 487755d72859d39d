"""People: who they are, what they may do, and how they prove it."""

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
"""How much each role may do; a member manages only what is theirs or everyone's."""


def list_all(db: Session) -> Sequence[Account]:
    return db.exec(select(Account).order_by(Account.name)).all()


def has_any(db: Session) -> bool:
    return db.exec(select(Account.id)).first() is not None


def get(db: Session, account_id: int) -> Account:
    account = db.get(Account, account_id)
    if account is None:
        raise NotFoundError("There is no such account.", hint="It may have been removed.")
    return account


def find(db: Session, name: str) -> Account | None:
    return db.exec(select(Account).where(Account.name == name.strip().lower())).first()


def get_by_name(db: Session, name: str) -> Account:
    account = find(db, name)
    if account is None:
        raise NotFoundError(f"Nobody is called {name}.", hint="`studio accounts list` names all.")
    return account


def add(db: Session, name: str, role: Role) -> Account:
    """Add a person, who chooses a password by a link.

    Raises:
        ConflictError: the name is taken.
        InvalidError: it cannot be one.

    """
    name = name.strip().lower()
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidError(
            "A name has letters, digits and . _ @ + - and begins with a letter or digit.",
            hint="At most 80 characters; an address of mail will do.",
            param="name",
        )
    if db.exec(select(Account.id).where(Account.name == name)).first():
        raise ConflictError(f"{name} is there already.", param="name")
    account = Account(name=name, role=role)
    db.add(account)
    db.flush()
    return account


def set_password(db: Session, account: Account, hashed: str, *, but: int | None = None) -> None:
    """Keep a new password; whoever came in with the old one is shown out, but for one browser."""
    account.password = hashed
    login_sessions.end_others(db, account.id, but)


def authenticate(account: Account | None, password: str) -> Account:
    """Return the account if the password is its own.

    Raises:
        UnknownPersonError: it is not, or nobody is called so: which of them is not told.

    """
    if (
        not passwords.verify_password(password, account.password if account else "")
        or account is None
    ):
        raise UnauthorizedError(
            "Name and password do not go together.",
            hint="Forgotten? An administrator can give you a link to choose a new one.",
        )
    return account


def change_role(db: Session, account: Account, role: Role) -> None:
    """Let somebody do more, or less.

    Raises:
        ConflictError: nobody would be left to administer the studio.

    """
    if role is not Role.ADMINISTRATOR:
        _require_another_administrator(db, account)
    account.role = role


def remove(db: Session, account: Account) -> None:
    """Remove a person; what they made becomes everyone's.

    Raises:
        ConflictError: nobody would be left to administer the studio.

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
            f"{account.name} is the only administrator.", hint="Make somebody else one first."
        )
