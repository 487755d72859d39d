"""People with an account as JSON, for administrators: added, listed, given a role, removed."""

from datetime import datetime

from fastapi import APIRouter, Request

from studio.db.accounts import Account, Role
from studio.services.accounts import accounts
from studio.web.accounts import password_links
from studio.web.api.conventions.api_route import NEVER_STORED, ApiRoute
from studio.web.api.conventions.schemas import Body, Id, Name, Out
from studio.web.http.deps import DB

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/accounts", tags=["accounts"])


class NewAccount(Body):
    name: Name
    """What they sign in as."""
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
    """By which they choose a password, within a day. It works once."""


class AccountsOut(Out):
    data: list[AccountOut]


@router.get("")
def listing(db: DB) -> AccountsOut:
    """List everybody who may sign in, by name."""
    return AccountsOut(data=[AccountOut.model_validate(one) for one in accounts.list_all(db)])


@router.post("", status_code=201, openapi_extra=NEVER_STORED)
def add(new: NewAccount, request: Request, db: DB) -> InvitedAccountOut:
    """Add somebody, who chooses a password by the link."""
    return _invited(request, db, accounts.add(db, new.name, new.role))


@router.post("/{account_id}/link")
def link(account_id: Id, request: Request, db: DB) -> InvitedAccountOut:
    """Make a link by which somebody chooses a new password; the one before works no more."""
    return _invited(request, db, accounts.get(db, account_id))


@router.patch("/{account_id}")
def change(account_id: Id, changed: ChangedAccount, db: DB) -> AccountOut:
    """Let somebody do more, or less. One administrator stays."""
    account = accounts.get(db, account_id)
    accounts.change_role(db, account, changed.role)
    return AccountOut.model_validate(account)


@router.delete("/{account_id}", status_code=204)
def remove(account_id: Id, db: DB) -> None:
    """Remove somebody; what they made becomes everyone's."""
    accounts.remove(db, accounts.get(db, account_id))


def _invited(request: Request, db: DB, account: Account) -> InvitedAccountOut:
    shown = AccountOut.model_validate(account).model_dump()
    return InvitedAccountOut(**shown, link=password_links.create_link(request, db, account))
