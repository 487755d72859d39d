"""REST routes of accounts, for administrators: list, add, change role, remove."""

from datetime import datetime

from fastapi import APIRouter, Request

from studio.db.accounts import Account, Role
from studio.services.accounts import accounts
from studio.web.accounts import people_page
from studio.web.api.conventions.api_route import NEVER_STORED, ApiRoute
from studio.web.api.conventions.schemas import Body, Id, Name, Out
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/accounts", tags=["accounts"])


class NewAccount(Body):
    name: Name
    """The name to sign in with."""
    role: Role = Role.MEMBER


class ChangedAccount(Body):
    role: Role


class AccountOut(Out):
    id: int
    name: str
    role: Role
    created_at: datetime


class InvitedAccountOut(AccountOut):
    link: str
    """A link to choose a password. It works once, within a day."""


class AccountsOut(Out):
    data: list[AccountOut]


@router.get("")
def listing(db: DB) -> AccountsOut:
    """List the accounts by name."""
    return AccountsOut(
        data=[AccountOut.model_validate(account) for account in accounts.list_all(db)]
    )


@router.post("", status_code=201, openapi_extra=NEVER_STORED)
def add(new: NewAccount, request: Request, db: DB) -> InvitedAccountOut:
    """Add an account, with a link to choose its password."""
    return _invited(request, db, accounts.add(db, new.name, new.role))


@router.post("/{account_id}/link")
def link(account_id: Id, request: Request, db: DB) -> InvitedAccountOut:
    """Create a link to choose a new password; the previous link stops working."""
    return _invited(request, db, accounts.get(db, account_id))


@router.patch("/{account_id}")
def change(account_id: Id, changed: ChangedAccount, db: DB) -> AccountOut:
    """Change the role of an account. The last administrator cannot be demoted."""
    account = accounts.get(db, account_id)
    accounts.change_role(db, account, changed.role)
    return AccountOut.model_validate(account)


@router.delete("/{account_id}", status_code=204)
def remove(account_id: Id, db: DB) -> None:
    """Remove an account; what it owns becomes everyone's."""
    accounts.remove(db, accounts.get(db, account_id))


def _invited(request: Request, db: DB, account: Account) -> InvitedAccountOut:
    fields = AccountOut.model_validate(account).model_dump()
    return InvitedAccountOut(**fields, link=people_page.create_link(request, db, account))
