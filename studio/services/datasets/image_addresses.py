"""Where the images of a dataset are served."""

from sqlmodel import Session, col, select

from studio.db.tables import DatasetVersion, Run
from studio.services.datasets import versions


def of_version(version: DatasetVersion | None) -> str:
    """Return the address of the images of a version, up to their checksum; "" without one."""
    if version is None:
        return ""
    return f"/datasets/{version.dataset_id}/versions/{version.number}/images/"


def of_run(db: Session, run: Run) -> str:
    """Return the address of the images that a run trains on."""
    return of_version(versions.find_for_run(db, run))


def of_rows(db: Session, sha256: str) -> str:
    """Return the address of the images of the newest version with this checksum."""
    query = select(DatasetVersion).where(DatasetVersion.sha256 == sha256)
    return of_version(db.exec(query.order_by(col(DatasetVersion.id).desc())).first())
