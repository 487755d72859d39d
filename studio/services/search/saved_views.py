"""Saved views of the run table: a name for a URL query string."""

from collections.abc import Sequence

from sqlmodel import Session, col, select

from studio.db.summaries import SavedView
from studio.errors import NotFoundError
from studio.services import experiments

QUERY_LIMIT = 4000


def save(db: Session, name: str, query: str) -> SavedView:
    """Save a view under a name; replace an existing one.

    Raises:
        InvalidError: The name is not valid.

    """
    name = experiments.clean_name(name)
    existing = db.exec(select(SavedView).where(SavedView.name == name)).first()
    view = existing or SavedView(name=name, query=query)
    view.query = query[:QUERY_LIMIT].removeprefix("?")
    db.add(view)
    db.flush()
    return view


def get(db: Session, view_id: int) -> SavedView:
    view = db.get(SavedView, view_id)
    if view is None:
        raise NotFoundError(f"View {view_id} does not exist.", hint="It may have been deleted.")
    return view


def list_all(db: Session) -> Sequence[SavedView]:
    return db.exec(select(SavedView).order_by(col(SavedView.name))).all()


def delete(db: Session, view_id: int) -> None:
    db.delete(get(db, view_id))
