"""Accounts of OpenID Connect users: find or create them, and map their groups to roles."""

from contextlib import suppress

from sqlmodel import Session, select

from studio.db.accounts import Account, Role
from studio.errors import ConflictError, ForbiddenError, InvalidError
from studio.services.accounts import accounts, login_sessions
from studio.services.accounts.oidc import OidcUser
from studio.settings import Settings

_RANKS = list(Role)


def sign_in_account(db: Session, settings: Settings, visitor: OidcUser) -> Account | None:
    """Return a user's account, created or updated from their groups.

    None if they may not sign in; their existing sessions are then ended.

    Raises:
        ConflictError: The name belongs to another account.
        InvalidError: The name is not valid, or the settings cannot be parsed.

    """
    existing = db.exec(select(Account).where(Account.subject == visitor.subject)).first()
    role, decides = _role_for(settings, visitor), bool(settings.oidc_groups)
    if role is None and (existing is None or decides) and not _is_invited(db, settings, visitor):
        if existing is not None:
            login_sessions.end_others(db, existing.id)
        return None
    account = existing or _claim_or_create(db, visitor, role)
    if decides and role is not None and account.role is not role:
        with suppress(ConflictError):  # The last administrator keeps the role.
            accounts.change_role(db, account, role)
    return account


def no_account_error(visitor: OidcUser) -> ForbiddenError:
    return ForbiddenError(
        f"{visitor.name} has no account here.",
        hint="Ask an administrator to add you.",
    )


def group_roles(settings: Settings) -> dict[str, Role]:
    """Return the role of each group.

    Raises:
        InvalidError: The setting is not written as group=role.

    """
    parts = [part.strip() for part in settings.oidc_groups.split(",") if part.strip()]
    try:
        pairs = [part.rsplit("=", 1) for part in parts]
        return {group.strip(): Role(role.strip()) for group, role in pairs}
    except ValueError as error:
        raise InvalidError(
            f"STUDIO_OIDC_GROUPS is not valid: {error}.",
            hint="Write group=role, separated by commas, e.g. ml-admins=administrator,ml=member",
        ) from error


def _role_for(settings: Settings, visitor: OidcUser) -> Role | None:
    """Return the highest role of a user's groups, or the role of new users."""
    matching_roles = [
        role for group, role in group_roles(settings).items() if group in visitor.groups
    ]
    if matching_roles:
        return max(matching_roles, key=_RANKS.index)
    return Role(settings.new_people) if settings.new_people else None


def _is_invited(db: Session, settings: Settings, visitor: OidcUser) -> bool:
    """Return whether an administrator added this name and no one has signed in with it yet."""
    account = accounts.find(db, visitor.name)
    return not settings.oidc_groups and account is not None and _is_unused(account)


def _claim_or_create(db: Session, visitor: OidcUser, role: Role | None) -> Account:
    """Return the account of a new user: the one reserved for the name, or a new one."""
    account = accounts.find(db, visitor.name)
    if account is not None and not _is_unused(account):
        raise ConflictError(
            f"Another account is named {account.name}.",
            hint="An administrator can remove that account, or rename you in the sign-in service.",
        )
    account = account or accounts.add(db, visitor.name, role or Role.VIEWER)
    account.subject = visitor.subject
    db.flush()
    return account


def _is_unused(account: Account) -> bool:
    return not account.password and account.subject is None
