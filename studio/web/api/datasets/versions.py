"""How data sets are read, as JSON: detection, preview, versions, and the rows that came of it."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, computed_field

from studio.db.tables import DatasetVersion
from studio.intake import mapping_text
from studio.intake.conversion.converter import inspect_file
from studio.intake.conversion.mapping_preview import preview_rows as previewed
from studio.intake.mapping import FileOptions, Mapping, RowKind
from studio.intake.quality.finding_spans import FindingInRow
from studio.intake.row_formats.schema import MessageRole
from studio.intake.rows.paging import NumberedRow
from studio.services.datasets import (
    data_quality,
    dataset_builds,
    datasets,
    pending_datasets,
    versions,
)
from studio.services.datasets.dataset_builds import BuildResult
from studio.services.datasets.versions import Part, RowQuery
from studio.web.api.conventions.api_route import ApiRoute
from studio.web.api.conventions.schemas import Body, Id, Listing, Out
from studio.web.api.datasets.datasets import ProblemOut, findings_out
from studio.web.http.deps import DB, Config, ReadDB
from studio.web.http.multipart_upload import read_limits

router = APIRouter(route_class=ApiRoute, prefix="/api/v1/datasets/{dataset_id}", tags=["datasets"])

VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]


class EncodingOut(Out):
    """How the text of a file reads in one encoding."""

    encoding: str
    """For `file.encoding` of a mapping."""
    label: str
    sample: str


class DetectionOut(Out):
    """What was seen in the first rows of a file."""

    mapping: Mapping
    kind: RowKind
    sureness: Literal["sure", "likely", "guess"]
    evidence: list[str]
    """What speaks for it, in sentences."""
    alternatives: list[Mapping]
    unused: list[str]
    """Columns that play no role."""
    questions: list[str]
    """What a person should look at before the rows are used, in sentences."""
    encodings: list[EncodingOut]
    """Of a text that is not UTF-8: how it reads as it is read, and in other encodings."""
    sheets: list[str]
    """Of an Excel workbook: the names of its sheets."""

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def not_learnt(self) -> str:
        """What of rows read so training does not use, and what that means; empty of most."""
        return mapping_text.NOT_TRAINED_ON.get(self.mapping.shape, "")


class MappingPreviewRequest(Body):
    mapping: Mapping | None = None
    """By default the one in use, else the one that was detected."""
    rows: Annotated[int, Ge(1), Le(200)] = 20


class MappedRowOut(Out):
    number: int
    place: str
    """In an archive of several files "12 of b.jsonl", else the number."""
    values: dict[str, str]
    """As they stand in the file, cut short."""
    row: dict[str, Any] | None
    """What is made of it; null where it is left out."""
    problem: str | None
    part: Part | None


class NewVersion(Body):
    mapping: Mapping


class VersionOut(Out):
    number: int
    kind: RowKind
    mapping: Mapping
    sha256: str
    """Of the rows: the same rows are the same version."""
    train_rows: int
    validation_rows: int
    problems: list[ProblemOut]
    not_learnt: str
    """What of these rows training does not use, and what that means; empty of most."""
    findings: list[ProblemOut] | None
    """What is suspicious in the rows; null until they have been looked through."""
    removed: dict[str, int]
    is_current: bool
    runs: int
    """How many learnt from it, or will."""
    created_at: datetime


class BuiltOut(Out):
    """What became of a reading that was asked for."""

    version: VersionOut | None
    """Null while a chore reads the file, which is large."""
    is_new: bool
    """Whether no version had just these rows before."""
    chore: int | None


class RowPageQuery(BaseModel):
    """Which rows to show."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    split: Part = "train"
    after: int = Field(default=0, ge=0, lt=2**53)
    limit: int = Field(default=50, ge=1, le=200)
    version: int | None = Field(default=None, ge=1, lt=2**31)
    """By default the one in use."""
    q: str = Field(default="", max_length=200)
    """Only rows that hold these words, in any case."""
    finding: str = Field(default="", max_length=50)
    """Only rows that something was found in: its code. Each then says `why`."""


class TurnOut(Out):
    role: MessageRole
    content: str
    weight: Literal[0, 1] = 1
    """0: this answer is read, not learnt."""
    reasoning_content: str | None = None
    """What the answer was thought out by."""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class RowOut(Out):
    """A row as it is trained on: a conversation, a text, a preference or a judged answer."""

    number: int
    source: int | None = None
    """Its number as the file that was brought counts rows, if that is known."""
    why: str = ""
    """What of it the finding that was asked for found."""
    twin: int | None = None
    """The row it repeats; of an overlap, among the rows to train on."""
    messages: list[TurnOut] | None = None
    text: str | None = None
    chosen: list[TurnOut] | None = None
    rejected: list[TurnOut] | None = None
    label: bool | None = None
    tools: list[dict[str, Any]] | None = None


@router.get("/detection")
def detection(
    dataset_id: Id, db: ReadDB, config: Config, options: Annotated[FileOptions, Query()]
) -> DetectionOut:
    """Say what was seen in the file, how sure that is, and what else it could be.

    Parameters say how to read the file itself, where what was detected of that is wrong.
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
    dataset_id: Id, wanted: MappingPreviewRequest, db: ReadDB, config: Config
) -> Listing[MappedRowOut]:
    """Show the first rows and what a mapping makes of them. Nothing is written."""
    dataset = datasets.get(db, dataset_id)
    mapping, limits = wanted.mapping, read_limits(config)
    if mapping is None and dataset.version is not None:
        mapping = versions.current_mapping(db, dataset_id)
    if mapping is None:
        mapping = pending_datasets.load_detection(config.datasets, dataset, limits).mapping
    found = previewed(
        pending_datasets.original_source(config.datasets, dataset), mapping, limits, wanted.rows
    )
    shown = [MappedRowOut.model_validate(one) for one in found]
    return Listing(data=shown, has_more=len(found) == wanted.rows, next_after=None)


@router.get("/versions")
def listing(dataset_id: Id, db: DB) -> Listing[VersionOut]:
    """List every reading of the file, newest first."""
    current, uses = datasets.get(db, dataset_id).version, versions.count_runs(db, dataset_id)
    shown = [_version_out(one, current, uses) for one in versions.list_versions(db, dataset_id)]
    return Listing(data=shown, has_more=False, next_after=None)


@router.post("/versions", status_code=201)
def build(
    request: Request,
    response: Response,
    dataset_id: Id,
    wanted: NewVersion,
    db: ReadDB,
    config: Config,
) -> BuiltOut:
    """Read the file in another way, and let new runs learn from that.

    The answer is 201 with a new version, 200 with one that has the same rows, or 202 with the chore
    that reads a large file.
    """
    made = dataset_builds.rebuild(
        request.app.state.engine,
        config.datasets,
        dataset_id,
        wanted.mapping,
        read_limits(config),
    )
    return built_out(made, response, versions.count_runs(db, dataset_id))


@router.get("/versions/{number}")
def show(dataset_id: Id, number: VersionNumber, db: DB) -> VersionOut:
    version = versions.get(db, dataset_id, number)
    current = datasets.get(db, dataset_id).version
    return _version_out(version, current, versions.count_runs(db, dataset_id))


@router.delete("/versions/{number}", status_code=204)
def delete(dataset_id: Id, number: VersionNumber, db: DB, config: Config) -> None:
    """Delete a version that is not in use and that no run has learnt from."""
    versions.delete(db, config.datasets, dataset_id, number)


@router.get("/rows", response_model_exclude_unset=True)
def rows(
    dataset_id: Id, db: DB, config: Config, asked: Annotated[RowPageQuery, Query()]
) -> Listing[RowOut]:
    """Show the rows as they are trained on, in their order. A page of long rows ends early.

    A search for words ends early, too, when it has looked for long: go on behind `next_after`.
    """
    dataset = datasets.get(db, dataset_id)
    number = asked.version or dataset.version
    if number is None:
        return Listing(data=[], has_more=False, next_after=None)
    version = versions.get(db, dataset_id, number)
    which = RowQuery(
        part=asked.split, after=asked.after, words=asked.q.strip(), finding=asked.finding
    )
    if asked.finding:
        data_quality.get(version, asked.finding, asked.split)
    found = versions.load_rows(config.datasets, version, which, limit=asked.limit)
    spots = data_quality.locate_spans(config.datasets, version, which, found)
    shown = [_row_out(one, spots.get(one.number)) for one in found.rows]
    return Listing(data=shown, has_more=found.has_more, next_after=found.next_after)


def built_out(made: BuildResult, response: Response, uses: dict[int, int]) -> BuiltOut:
    """Tell what became of a reading that was asked for, by the status, too."""
    response.status_code = 202 if made.chore else 201 if made.is_new else 200
    version = made.version
    shown = _version_out(version, version.number, uses) if version else None
    return BuiltOut(version=shown, is_new=made.is_new, chore=made.chore.id if made.chore else None)


def _row_out(one: NumberedRow, spotted: FindingInRow | None = None) -> RowOut:
    more: dict[str, Any] = {} if one.source is None else {"source": one.source}
    if spotted is not None:
        more |= {"why": spotted.why, "twin": spotted.twin}
    return RowOut.model_validate({"number": one.number} | more | one.row)


def _version_out(version: DatasetVersion, current: int | None, uses: dict[int, int]) -> VersionOut:
    mapping = Mapping.model_validate(version.mapping)
    more = {
        "is_current": version.number == current,
        "runs": uses.get(version.number, 0),
        "findings": findings_out(version),
        "not_learnt": mapping_text.NOT_TRAINED_ON.get(mapping.shape, ""),
    }
    return VersionOut.model_validate(version.model_dump() | more)
