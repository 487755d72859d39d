"""Links by which people with an account choose a password."""

from fastapi import Request
from sqlmodel import Session

from studio.db.accounts import Account, LinkPurpose
from studio.services.accounts import one_time_links


def create_link(request: Request, db: Session, account: Account) -> str:
    """Make a link for somebody; the one before works no more."""
    secret = one_time_links.issue(db, LinkPurpose.PASSWORD, account.id)
    here = request.app.state.settings.public_url or str(request.base_url)
    return f"{here.rstrip('/')}/login?t={secret}"
