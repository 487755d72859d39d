"""REST routes of dataset versions: detection, mapping preview, rows, and what is wrong in them."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le, Len, Lt
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from studio.db.tables import DatasetVersion
from studio.errors import ConflictError
from studio.intake.conversion.converter import inspect_file
from studio.intake.conversion.file_preview import preview_rows as previewed
from studio.intake.mapping import FileOptions, Mapping, RowKind
from studio.intake.quality.findings import MAX_LISTED_ROWS
from studio.intake.quality.row_checks import FindingInRow
from studio.intake.row_formats.schema import MessageRole
from studio.intake.rows.paging import NumberedRow
from studio.methods import readers
from studio.services.datasets import (
    data_quality,
    dataset_builds,
    datasets,
    pending_datasets,
    row_archives,
    versions,
)
from studio.services.datasets.data_quality import FindingRef
from studio.services.datasets.dataset_builds import BuildResult
from studio.services.datasets.versions import Part, RowQuery
from studio.web.api.conventions import ApiRoute, Body, Id, Listing, Out
from studio.web.api.datasets.datasets import ProblemOut, findings_out
from studio.web.api.system.system import TaskOut, task_out
from studio.web.http.deps import DB, Config, ReadDB
from studio.web.http.multipart_upload import read_limits
from studio.web.http.row_files import (
    IMAGE_RESPONSES,
    ZIP_RESPONSES,
    Sha256,
    image_response,
    zip_response,
)

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}", tags=["datasets"])

VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]


class EncodingOut(Out):
    """A sample of a file's text in one encoding."""

    encoding: str
    """For `file.encoding` of a mapping."""
    label: str
    sample: str


class DetectionOut(Out):
    """The format detected from the first rows of a file."""

    mapping: Mapping
    kind: RowKind
    sureness: Literal["sure", "likely", "guess"]
    evidence: list[str]
    """The evidence for this format, in sentences."""
    alternatives: list[Mapping]
    unused: list[str]
    """Columns that are not used."""
    questions: list[str]
    """What to check before the rows are used, in sentences."""
    encodings: list[EncodingOut]
    """If the text is not UTF-8: a sample in the detected encoding and in others."""
    sheets: list[str]
    """The names of the sheets of an Excel workbook."""

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def not_learnt(self) -> str:
        """What training does not use of such rows, and what that means; usually empty."""
        return _not_learnt(self.mapping)


class MappingPreviewRequest(Body):
    mapping: Mapping | None = None
    """Defaults to the current mapping, or to the detected one."""
    rows: Annotated[int, Ge(1), Le(200)] = 20


class MappedRowOut(Out):
    number: int
    place: str
    """In an archive of several files "12 of b.jsonl", otherwise the number."""
    values: dict[str, str]
    """Values as in the file, shortened."""
    row: dict[str, Any] | None
    """The resulting row; null if it is excluded."""
    problem: str | None
    part: Part | None


class NewVersion(Body):
    mapping: Mapping


class VersionOut(Out):
    number: int
    kind: RowKind
    mapping: Mapping
    sha256: str
    """Checksum of the rows: the same rows are the same version."""
    train_rows: int
    validation_rows: int
    problems: list[ProblemOut]
    not_learnt: str
    """What training does not use of these rows, and what that means; usually empty."""
    findings: list[ProblemOut] | None
    """Possible problems in the rows; null until they have been scanned."""
    removed: dict[str, int]
    is_current: bool
    runs: int
    """How many runs have trained on it, or will."""
    created_at: datetime


class BuiltOut(Out):
    """The result of building a version."""

    version: VersionOut | None
    """Null while a task reads a large file."""
    is_new: bool
    """Whether no existing version had the same rows."""
    chore: int | None


class RowPageQuery(BaseModel):
    """The rows to return."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    split: Part = "train"
    after: int = Field(default=0, ge=0, lt=2**53)
    limit: int = Field(default=50, ge=1, le=200)
    version: int | None = Field(default=None, ge=1, lt=2**31)
    """Defaults to the current version."""
    q: str = Field(default="", max_length=200)
    """Only rows that contain these words, ignoring case."""
    finding: str = Field(default="", max_length=50)
    """Only rows with this finding, by its code. Each row then has a `why`."""


class ImageOut(Out):
    """An image of a turn."""

    sha256: str
    """For `/versions/{number}/images/{sha256}`; in a preview for `/mapping/images/{sha256}`, or
    empty if it was not read."""
    at: int
    """Before which character of the content it stands."""
    width: int
    """In pixels; 0 in a preview."""
    height: int


class TurnOut(Out):
    role: MessageRole
    content: str
    images: list[ImageOut] | None = None
    """The images in the turn, sorted by place."""
    weight: Literal[0, 1] = 1
    """0: this answer is context and not trained on."""
    reasoning_content: str | None = None
    """The reasoning that precedes the answer."""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class RowOut(Out):
    """A row as it is trained on, of any kind."""

    number: int
    source: int | None = None
    """Its row number in the original file, if known."""
    why: str = ""
    """Why the requested finding applies to the row."""
    twin: int | None = None
    """The row it duplicates; for an overlap, a row of the training split."""
    messages: list[TurnOut] | None = None
    text: str | None = None
    chosen: list[TurnOut] | None = None
    rejected: list[TurnOut] | None = None
    label: bool | None = None
    labels: list[str] | None = None
    """Of a text with several labels or none."""
    numbers: dict[str, float] | None = None
    """Of a text with numbers: by column."""
    steps: list[str] | None = None
    """Of a solution with rated steps."""
    correct: list[bool] | None = None
    """Whether each step is right."""
    words: list[str] | None = None
    """The words of a text, if they have tags."""
    tags: list[str] | None = None
    """The tag of each word in BIO: O outside of entities, else B- or I- with a label."""
    item: dict[str, Any] | None = None
    """Of a task: what graders may read, by column."""
    anchor: str | None = None
    """The first text of a pair, such as a question."""
    positive: str | None = None
    """The text that belongs to it."""
    negatives: list[str] | None = None
    """Texts that do not."""
    score: float | None = None
    """How alike the two texts are, on the scale of the data."""
    tools: list[dict[str, Any]] | None = None


@router.get("/detection")
def detection(
    dataset_id: Id, db: ReadDB, config: Config, options: Annotated[FileOptions, Query()]
) -> DetectionOut:
    """Return the detected format of the file, the confidence and the alternatives.

    Parameters override how the file itself is read, if that was detected wrongly.
    """
    dataset, limits = datasets.get(db, dataset_id), read_limits(config)
    if options == FileOptions():
        return DetectionOut.model_validate(
            pending_datasets.load_detection(config.datasets, dataset, limits)
        )
    source = replace(pending_datasets.original_source(config.datasets, dataset), options=options)
    return DetectionOut.model_validate(inspect_file(source, limits.for_request()).detected)


@router.post("/mapping/preview")
def preview(
    dataset_id: Id, body: MappingPreviewRequest, db: ReadDB, config: Config
) -> Listing[MappedRowOut]:
    """Preview the first rows under a mapping. Nothing is saved."""
    dataset = datasets.get(db, dataset_id)
    mapping, limits = body.mapping, read_limits(config)
    if mapping is None and dataset.version is not None:
        mapping = versions.current_mapping(db, dataset_id)
    if mapping is None:
        mapping = pending_datasets.load_detection(config.datasets, dataset, limits).mapping
    mapped_rows = previewed(
        pending_datasets.original_source(config.datasets, dataset), mapping, limits, body.rows
    )
    page_rows = [MappedRowOut.model_validate(row) for row in mapped_rows]
    return Listing(data=page_rows, has_more=len(mapped_rows) == body.rows, next_after=None)


@router.get("/mapping/images/{sha256}", response_class=Response, responses=IMAGE_RESPONSES)
def show_preview_image(dataset_id: Id, sha256: Sha256, db: ReadDB, config: Config) -> Response:
    """Return an image of a previewed row. It is kept until the dataset is built."""
    datasets.get(db, dataset_id)
    return image_response(versions.preview_image_file(config.datasets, dataset_id, sha256))


@router.get("/versions")
def listing(dataset_id: Id, db: DB) -> Listing[VersionOut]:
    """List the versions of the dataset, newest first."""
    current, run_counts = datasets.get(db, dataset_id).version, versions.count_runs(db, dataset_id)
    return Listing.complete(
        _version_out(version, current, run_counts)
        for version in versions.list_versions(db, dataset_id)
    )


@router.post("/versions", status_code=201)
def build(
    request: Request,
    response: Response,
    dataset_id: Id,
    body: NewVersion,
    db: ReadDB,
    config: Config,
) -> BuiltOut:
    """Build a version with another mapping, and use it for new runs.

    Returns 201 with a new version, 200 with an existing version that has the same rows, or 202 with
    the task that reads a large file.
    """
    result = dataset_builds.rebuild(
        request.app.state.engine,
        config.datasets,
        dataset_id,
        body.mapping,
        read_limits(config),
    )
    return built_out(result, response, versions.count_runs(db, dataset_id))


@router.get("/versions/{number}")
def show(dataset_id: Id, number: VersionNumber, db: DB) -> VersionOut:
    version = versions.get(db, dataset_id, number)
    current = datasets.get(db, dataset_id).version
    return _version_out(version, current, versions.count_runs(db, dataset_id))


@router.get(
    "/versions/{number}/images/{sha256}", response_class=Response, responses=IMAGE_RESPONSES
)
def show_image(
    dataset_id: Id, number: VersionNumber, sha256: Sha256, db: ReadDB, config: Config
) -> Response:
    """Return an image of a row, as it was uploaded: PNG, JPEG, WebP or GIF."""
    version = versions.get(db, dataset_id, number)
    return image_response(versions.image_file(config.datasets, version, sha256))


@router.get(
    "/versions/{number}/rows.zip", response_class=StreamingResponse, responses=ZIP_RESPONSES
)
def download(
    dataset_id: Id, number: VersionNumber, db: ReadDB, config: Config
) -> StreamingResponse:
    """Download the rows of a version with their images, as an archive that can be imported."""
    version = versions.get(db, dataset_id, number)
    name = datasets.get(db, dataset_id).name
    return zip_response(row_archives.pack_rows(config.datasets, version), f"{name}-{number}.zip")


@router.delete("/versions/{number}", status_code=204)
def delete(dataset_id: Id, number: VersionNumber, db: DB, config: Config) -> None:
    """Delete a version that is not in use and that no run has trained on."""
    versions.delete(db, config.datasets, dataset_id, number)


@router.get("/rows", response_model_exclude_unset=True)
def rows(
    dataset_id: Id, db: DB, config: Config, query: Annotated[RowPageQuery, Query()]
) -> Listing[RowOut]:
    """Return rows as they are trained on, in order. A page of long rows may be shorter.

    A slow search may also return a shorter page: continue from `next_after`.
    """
    dataset = datasets.get(db, dataset_id)
    number = query.version or dataset.version
    if number is None:
        return Listing.complete([])
    version = versions.get(db, dataset_id, number)
    row_query = RowQuery(
        part=query.split, after=query.after, words=query.q.strip(), finding=query.finding
    )
    if query.finding:
        data_quality.get(version, query.finding, query.split)
    page = versions.load_rows(config.datasets, version, row_query, limit=query.limit)
    spans = data_quality.locate_spans(config.datasets, version, row_query, page)
    page_rows = [_row_out(row, spans.get(row.number)) for row in page.rows]
    return Listing(data=page_rows, has_more=page.has_more, next_after=page.next_after)


def built_out(made: BuildResult, response: Response, uses: dict[int, int]) -> BuiltOut:
    """Return the result of a build, and set the matching status code."""
    response.status_code = 202 if made.chore else 201 if made.is_new else 200
    version = made.version
    version_fields = _version_out(version, version.number, uses) if version else None
    return BuiltOut(
        version=version_fields, is_new=made.is_new, chore=made.chore.id if made.chore else None
    )


def _row_out(numbered: NumberedRow, finding: FindingInRow | None = None) -> RowOut:
    extra: dict[str, Any] = {} if numbered.source is None else {"source": numbered.source}
    if finding is not None:
        extra |= {"why": finding.reason, "twin": finding.twin}
    return RowOut.model_validate({"number": numbered.number} | extra | numbered.row)


def _version_out(
    version: DatasetVersion, current: int | None, run_counts: dict[int, int]
) -> VersionOut:
    mapping = Mapping.model_validate(version.mapping)
    extra = {
        "is_current": version.number == current,
        "runs": run_counts.get(version.number, 0),
        "findings": findings_out(version),
        "not_learnt": _not_learnt(mapping),
    }
    return VersionOut.model_validate(version.model_dump() | extra)


def _not_learnt(mapping: Mapping) -> str:
    """Return what the most suitable method does not use of what a mapping produces."""
    return next((one.ignores.get(mapping.shape, "") for one in readers(mapping.kind)), "")


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
    left_out = version.problems if version else []
    return Listing[ProblemOut].complete([*left_out, *(findings_out(version) or [])])


@router.post("/look", status_code=202)
def look(dataset_id: Id, db: DB, config: Config) -> TaskOut:
    """Scan rows that were imported before data checks existed."""
    version = versions.current(db, datasets.get(db, dataset_id))
    if version is None:
        raise ConflictError(f"Dataset {dataset_id} has no rows yet.")
    return task_out(data_quality.enqueue_scan(db, config.datasets, version))


@router.post("/exclude", status_code=201)
def exclude(
    request: Request,
    response: Response,
    dataset_id: Id,
    body: RowExclusion,
    db: ReadDB,
    config: Config,
) -> BuiltOut:
    """Build a version without some rows, and use it for new runs.

    Excludes at most 10,000 rows of a finding at once. Returns 201 with a new version, 200 with an
    existing version that has the same rows, or 202 with the task that reads a large file.
    """
    target = (request.app.state.engine, config.datasets, dataset_id)
    if body.finding is None:
        result = data_quality.exclude_rows(*target, body.rows, read_limits(config))
    else:
        finding = FindingRef(code=body.finding, part=body.split)
        result = data_quality.exclude_finding(*target, finding, read_limits(config))
    return built_out(result, response, versions.count_runs(db, dataset_id))
