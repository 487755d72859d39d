"""People whom another service signs in: which account is theirs, and what they may do here."""

from contextlib import suppress

from sqlmodel import Session, select

from studio.db.accounts import Account, Role
from studio.errors import ConflictError, ForbiddenError, InvalidError
from studio.services.accounts import accounts, login_sessions
from studio.services.accounts.oidc import OidcUser
from studio.settings import Settings

_RANKS = list(Role)


def sign_in_account(db: Session, settings: Settings, visitor: OidcUser) -> Account | None:
    """Return whose account a visitor has, made or changed as their groups say.

    None if they may not come in: then whoever came in as them before is shown out.

    Raises:
        ConflictError: the name is somebody else's.
        InvalidError: the name cannot be one, or the settings cannot be read.

    """
    found = db.exec(select(Account).where(Account.subject == visitor.subject)).first()
    role, decides = _role_for(settings, visitor), bool(settings.oidc_groups)
    if role is None and (found is None or decides) and not _is_invited(db, settings, visitor):
        if found is not None:
            login_sessions.end_others(db, found.id)
        return None
    account = found or _claim_or_create(db, visitor, role)
    if decides and role is not None and account.role is not role:
        with suppress(ConflictError):  # The last administrator stays one.
            accounts.change_role(db, account, role)
    return account


def no_account_error(visitor: OidcUser) -> ForbiddenError:
    return ForbiddenError(
        f"{visitor.name} has no account here.",
        hint="Ask an administrator of the studio to add you.",
    )


def group_roles(settings: Settings) -> dict[str, Role]:
    """Return what members of each group may do.

    Raises:
        InvalidError: it is not written as group=role.

    """
    parts = [one.strip() for one in settings.oidc_groups.split(",") if one.strip()]
    try:
        pairs = [one.rsplit("=", 1) for one in parts]
        return {group.strip(): Role(role.strip()) for group, role in pairs}
    except ValueError as error:
        raise InvalidError(
            f"STUDIO_OIDC_GROUPS cannot be read: {error}.",
            hint="Write group=role, parted by commas, as in ml-admins=administrator,ml=member",
        ) from error


def _role_for(settings: Settings, visitor: OidcUser) -> Role | None:
    """Return the most that one's groups let one do, or what whoever is new may."""
    fitting = [role for group, role in group_roles(settings).items() if group in visitor.groups]
    if fitting:
        return max(fitting, key=_RANKS.index)
    return Role(settings.new_people) if settings.new_people else None


def _is_invited(db: Session, settings: Settings, visitor: OidcUser) -> bool:
    """Whether an administrator has added them by name, and nobody has used that yet."""
    account = accounts.find(db, visitor.name)
    return not settings.oidc_groups and account is not None and _is_unused(account)


def _claim_or_create(db: Session, visitor: OidcUser, role: Role | None) -> Account:
    """Return the account of who comes for the first time: the one that waits for them, or new."""
    account = accounts.find(db, visitor.name)
    if account is not None and not _is_unused(account):
        raise ConflictError(
            f"Somebody else is called {account.name} here.",
            hint="An administrator can remove that account, or keep it and rename you there.",
        )
    account = account or accounts.add(db, visitor.name, role or Role.VIEWER)
    account.subject = visitor.subject
    db.flush()
    return account


def _is_unused(account: Account) -> bool:
    return not account.password and account.subject is None
