"""REST routes of data quality: list findings, scan for them, exclude rows."""

from typing import Annotated, Self

from annotated_types import Ge, Len, Lt
from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from studio.errors import ConflictError
from studio.intake.quality.dataset_checks import MAX_LISTED_ROWS
from studio.services.datasets import data_quality, datasets, versions
from studio.services.datasets.data_quality import FindingRef
from studio.services.datasets.versions import Part
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Id, Listing
from studio.web.api.datasets.datasets import ProblemOut, findings_out
from studio.web.api.datasets.versions import BuiltOut, built_out
from studio.web.api.system.tasks import TaskOut
from studio.web.api.system.tasks import task_out as chore_out
from studio.web.http.deps import DB, Config, ReadDB
from studio.web.http.multipart_upload import read_limits

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}", tags=["datasets"])


class RowExclusion(Body):
    """Rows to exclude: by number, or all rows of a finding."""

    rows: Annotated[list[Annotated[int, Ge(1), Lt(2**53)]], Len(0, MAX_LISTED_ROWS)] = Field(
        default_factory=list
    )
    """Row numbers in the original file: `source` of a row."""
    finding: str | None = None
    """The code of a finding. Of duplicate rows, the first is kept."""
    split: Part = "train"
    """The split that the finding is in."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if bool(self.rows) == (self.finding is not None):
            message = "Specify either rows or a finding, not both."
            raise ValueError(message)
        return self


@router.get("/problems")
def problems(dataset_id: Id, db: DB) -> Listing[ProblemOut]:
    """List the rows that were excluded and why, and the findings in the remaining rows."""
    version = versions.current(db, datasets.get(db, dataset_id))
    left_out = (
        [ProblemOut.model_validate(problem) for problem in version.problems] if version else []
    )
    listed = [*left_out, *(findings_out(version) or [])]
    return Listing(data=listed, has_more=False, next_after=None)


@router.post("/look", status_code=202)
def look(dataset_id: Id, db: DB, config: Config) -> TaskOut:
    """Scan rows that were imported before data checks existed."""
    version = versions.current(db, datasets.get(db, dataset_id))
    if version is None:
        raise ConflictError(f"Dataset {dataset_id} has no rows yet.")
    return chore_out(data_quality.enqueue_scan(db, config.datasets, version))


@router.post("/exclude", status_code=201)
def exclude(
    request: Request,
    response: Response,
    dataset_id: Id,
    wanted: RowExclusion,
    db: ReadDB,
    config: Config,
) -> BuiltOut:
    """Build a version without some rows, and use it for new runs.

    Excludes at most 10,000 rows of a finding at once. Returns 201 with a new version, 200 with an
    existing version that has the same rows, or 202 with the task that reads a large file.
    """
    target = (request.app.state.engine, config.datasets, dataset_id)
    if wanted.finding is None:
        result = data_quality.exclude_rows(*target, wanted.rows, read_limits(config))
    else:
        finding = FindingRef(code=wanted.finding, part=wanted.split)
        result = data_quality.exclude_finding(*target, finding, read_limits(config))
    return built_out(result, response, versions.count_runs(db, dataset_id))
