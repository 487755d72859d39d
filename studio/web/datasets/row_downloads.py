"""Images of rows, and archives of rows with their images."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response, StreamingResponse

from studio.services.datasets import datasets, row_archives, versions
from studio.web.http.deps import Config, ReadDB
from studio.web.http.row_files import Sha256, image_response, zip_response

router = APIRouter(prefix="/datasets/{dataset_id}", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]


@router.get("/versions/{number}/images/{sha256}")
def show_image(
    dataset_id: DatasetId, number: VersionNumber, sha256: Sha256, db: ReadDB, config: Config
) -> Response:
    version = versions.get(db, dataset_id, number)
    return image_response(versions.image_file(config.datasets, version, sha256))


@router.get("/mapping/images/{sha256}")
def show_preview_image(
    dataset_id: DatasetId, sha256: Sha256, db: ReadDB, config: Config
) -> Response:
    """Show an image of the mapping's preview, before the dataset is built."""
    datasets.get(db, dataset_id)
    return image_response(versions.preview_image_file(config.datasets, dataset_id, sha256))


@router.get("/versions/{number}/rows.zip")
def download(
    dataset_id: DatasetId, number: VersionNumber, db: ReadDB, config: Config
) -> StreamingResponse:
    """Download the rows of a version with their images."""
    version = versions.get(db, dataset_id, number)
    name = datasets.get(db, dataset_id).name
    return zip_response(row_archives.pack_rows(config.datasets, version), f"{name}-{number}.zip")
