"""One-time links to choose a password."""

from fastapi import Request
from sqlmodel import Session

from studio.db.accounts import Account, LinkPurpose
from studio.services.accounts import one_time_links


def create_link(request: Request, db: Session, account: Account) -> str:
    """Create a link for an account; the previous link stops working."""
    secret = one_time_links.issue(db, LinkPurpose.PASSWORD, account.id)
    base_url = request.app.state.settings.public_url or str(request.base_url)
    return f"{base_url.rstrip('/')}/login?t={secret}"
