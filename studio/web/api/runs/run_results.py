"""REST routes of a run's results: metrics, log, checkpoints, files, sample answers and exports."""

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParam
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from pydantic import Field

from studio.db.states import TaskStatus
from studio.db.tables import Sample
from studio.db.tasks import Export
from studio.errors import ConflictError
from studio.protocols.entity_reports import EntityReport
from studio.protocols.events import SampleStage
from studio.protocols.label_reports import LabelReport
from studio.protocols.number_reports import NumberReport
from studio.protocols.run_dir import ExportDir, RunDir
from studio.recipe.exports import ExportDType, ExportKind
from studio.run_manifest import Manifest
from studio.services.compare import compare
from studio.services.exports import exports, hub_pushes
from studio.services.metrics import metrics, metrics_csv
from studio.services.queue import overview
from studio.services.results import entity_results, label_results, number_results
from studio.services.runs import artifacts, runs
from studio.services.samples import sample_ratings
from studio.web.api import conventions as api
from studio.web.api.models import models
from studio.web.api.models.models import ModelOut
from studio.web.api.system.system import TaskErrorOut
from studio.web.http.deps import DB, Config
from studio.web.rendering.render import plain_file_name
from studio.web.reports import report_file
from studio.web.reports.run_report import render_run_report

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/runs", tags=["runs"])


Report = TypeVar("Report")

MetricKeys = Annotated[str, Query(max_length=1000)]
AxisName = Annotated[str, Query(pattern=r"^[\w./-]{1,100}$")]
"""One of step, relative_step, epoch, tokens, seconds and wall, or a metric."""
Buckets = Annotated[int, Query(ge=2, le=10_000)]


@dataclass(frozen=True, slots=True)
class CurveWindow:
    """The range of the x axis, and the number of buckets it is divided into."""

    buckets: int
    x_range: tuple[float, float]


def _curve_window(
    buckets: Buckets = 1000,
    low: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
    high: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
) -> CurveWindow:
    first, last = metrics.FULL_RANGE
    return CurveWindow(buckets, (first if low is None else low, last if high is None else high))


CurveWindowParams = Annotated[CurveWindow, Depends(_curve_window)]


class SeriesOut(api.Out):
    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    non_finite: list[float]
    """Positions on the x axis where the value is NaN or infinite."""
    first_broken: int | None
    """The first step with such a value."""
    broken_run: int | None
    """The run that reported it: in a group, the earliest."""


class CurvesOut(api.Out):
    """Metrics on one axis; null where a metric has no value."""

    x: list[float]
    series: dict[str, SeriesOut]
    last_id: int
    """Pass it to the stream as `after` to continue from here."""


class LogOut(api.Out):
    lines: list[str]
    next_offset: int


class CheckpointOut(api.Out):
    name: str
    step: int
    bytes: int
    is_next: bool
    """Whether the run would resume from it."""


class ArtifactOut(api.Out):
    name: str
    bytes: int


@router.get("/{run_id}/metrics")
def curves(
    run_id: api.Id,
    db: DB,
    keys: MetricKeys = "",
    x: AxisName = "step",
    *,
    cut: CurveWindowParams,
) -> CurvesOut:
    """Return the curves of a run in buckets; `from` and `to` select part of the x axis."""
    runs.get(db, run_id)
    metric_keys = keys.split(",") if keys else metrics.list_keys(db, [run_id])
    curve_data = metrics.load_curves(
        db, [run_id], metric_keys, x=x, buckets=cut.buckets, part=cut.x_range
    )
    series = {
        key: SeriesOut.model_validate(metric_series, from_attributes=True)
        for (_run, key), metric_series in curve_data.series.items()
    }
    return CurvesOut(x=curve_data.x, series=series, last_id=curve_data.last_id)


class CsvResponse(Response):
    media_type = "text/csv"


@router.get("/{run_id}/metrics.csv", response_class=CsvResponse)
def metrics_table(run_id: api.Id, db: DB) -> Response:
    """Return all metrics of a run: one line per step, one column per metric."""
    run = runs.get(db, run_id)
    name = {"Content-Disposition": f'attachment; filename="run-{run_id}-metrics.csv"'}
    return CsvResponse(metrics_csv.to_csv(db, run), headers=name)


@router.get("/{run_id}/log")
def log(
    run_id: api.Id, db: DB, config: Config, after: api.After = None, limit: api.Limit = 500
) -> LogOut:
    """Return the log lines after a byte offset, or the last lines without one."""
    part = artifacts.read_log(run_folder(db, config, run_id).log, after, limit)
    return LogOut(lines=part.lines, next_offset=part.next_offset)


@router.get("/{run_id}/checkpoints")
def checkpoints(run_id: api.Id, db: DB, config: Config) -> api.Listing[CheckpointOut]:
    """List the checkpoints of the run, newest first. Their files cannot be downloaded."""
    run = runs.get(db, run_id)
    items = [
        CheckpointOut(
            name=checkpoint.name,
            step=checkpoint.step,
            bytes=checkpoint.bytes,
            is_next=checkpoint.step == run.checkpoint_step,
        )
        for checkpoint in artifacts.list_checkpoints(run_folder(db, config, run_id).checkpoints)
    ]
    return api.Listing.complete(items)


@router.get("/{run_id}/manifest", responses={200: {"model": Manifest}})
def manifest(run_id: api.Id, db: DB, config: Config) -> Response:
    """Return everything needed to reproduce and verify the run; partial while it trains."""
    run = runs.get(db, run_id)
    content = artifacts.read_manifest(db, run, run_folder(db, config, run_id))
    content = hub_pushes.add_to_manifest(db, run, content)
    return Response(content, media_type="application/json")


@router.get("/{run_id}/labels")
def labels(run_id: api.Id, db: DB, config: Config) -> LabelReport:
    """Return how well a classifier gives each label, and which it takes for which.

    Measured at the validation of the weights that the run has: its best ones, or the newest.
    """
    run = runs.get(db, run_id)
    found = label_results.load(run, RunDir(config.runs / str(run.id)))
    return _require_report(found.report if found else None, run_id, "labels", "classification")


@router.get("/{run_id}/entities")
def entities(run_id: api.Id, db: DB, config: Config) -> EntityReport:
    """Return how well a model finds the entities of each label.

    Measured at the validation of the weights that the run has: its best ones, or the newest.
    """
    run = runs.get(db, run_id)
    report = entity_results.load(run, RunDir(config.runs / str(run.id)))
    return _require_report(report, run_id, "entities", "token classification")


@router.get("/{run_id}/numbers")
def numbers(run_id: api.Id, db: DB, config: Config) -> NumberReport:
    """Return how near a model comes to each of the numbers that it learned.

    Measured at the validation of the weights that the run has: its best ones, or the newest.
    """
    run = runs.get(db, run_id)
    report = number_results.load(run, RunDir(config.runs / str(run.id)))
    return _require_report(report, run_id, "numbers", "regression")


def _require_report(report: Report | None, run_id: int, measured: str, method: str) -> Report:
    """Return the report of a validation.

    Raises:
        ConflictError: the run has none.

    """
    if report is None:
        raise ConflictError(
            f"Run {run_id} has measured no {measured}.",
            hint=f"Only {method} measures them, from its first validation on.",
        )
    return report


@router.get("/{run_id}/report", response_class=HTMLResponse)
def report(run_id: api.Id, db: DB, config: Config) -> Response:
    """Download a report to share, also of an unfinished run: one HTML file without links."""
    run = runs.get(db, run_id)
    html = render_run_report(db, run, RunDir(config.runs / str(run.id)), is_file=True)
    return report_file.respond(html, report_file.run_report_name(run), download=True)


@router.get("/{run_id}/artifacts")
def listing(run_id: api.Id, db: DB, config: Config) -> api.Listing[ArtifactOut]:
    files = artifacts.list_files(run_folder(db, config, run_id).artifacts)
    return api.Listing[ArtifactOut].complete(files)


@router.get("/{run_id}/artifacts/{name:path}")
def artifact(run_id: api.Id, name: str, db: DB, config: Config) -> FileResponse:
    path = artifacts.find_file(run_folder(db, config, run_id).artifacts, name)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


@router.get("/{run_id}/zip", response_class=StreamingResponse)
def whole_model(run_id: api.Id, db: DB, config: Config) -> StreamingResponse:
    """Download the trained model with all its files as a zip."""
    folder = run_folder(db, config, run_id).artifacts
    if not artifacts.list_files(folder):
        raise ConflictError(f"Run {run_id} has no model yet.", hint="Wait until it has succeeded.")
    return _zip_response(folder, f"{plain_file_name(runs.get(db, run_id).name) or 'run'}-{run_id}")


def run_folder(db: DB, config: Config, run_id: int) -> RunDir:
    run = runs.get(db, run_id)
    return RunDir(config.runs / str(run.id))


samples_router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1/runs", tags=["runs"])


SamplePosition = Annotated[int, PathParam(ge=0, lt=2**31)]


class SampleOut(api.Out):
    """The model's answer to one validation prompt, at one stage of its run."""

    stage: SampleStage
    step: int
    position: SamplePosition
    """The number of the prompt, used to rate its answer."""
    prompt: str
    reference: str
    """The answer in the dataset."""
    answer: str
    computed_in: str
    """The number format it was computed in, as measured: `float32`, `bfloat16 (nf4)`; empty for
    runs of earlier versions."""
    rating: int | None
    """From 1 to 5; null if not rated. Only answers after training can be rated."""


class NewRating(api.Body):
    score: int = Field(ge=sample_ratings.MIN_SCORE, le=sample_ratings.MAX_SCORE)
    """From 1, useless, to 5, perfect."""


@samples_router.get("/{run_id}/samples", name="listing")
def list_samples(run_id: api.Id, db: DB) -> api.Listing[SampleOut]:
    """List the run's sample answers, in the order in which they were generated."""
    runs.get(db, run_id)
    scores = sample_ratings.load_scores(db, [run_id])
    return api.Listing.complete(
        _sample_out(sample, scores.get(sample.id or 0))
        for sample in compare.list_samples(db, [run_id])
    )


@samples_router.put("/{run_id}/samples/{position}/rating")
def rate(run_id: api.Id, position: SamplePosition, new: NewRating, db: DB) -> SampleOut:
    """Rate an answer given after training. The mean rating is a metric of the run."""
    sample = sample_ratings.get_final_sample(db, run_id, position)
    sample_ratings.rate(db, sample, new.score)
    return _sample_out(sample, new.score)


@samples_router.delete("/{run_id}/samples/{position}/rating", status_code=204)
def forget(run_id: api.Id, position: int, db: DB) -> None:
    sample_ratings.rate(db, sample_ratings.get_final_sample(db, run_id, position), None)


def _sample_out(sample: Sample, score: int | None) -> SampleOut:
    return SampleOut.model_validate({**sample.model_dump(), "rating": score})


exports_router = APIRouter(
    route_class=api.ApiRoute, prefix="/api/v1/runs/{run_id}/exports", tags=["exports"]
)


LOG_LINES = 500


class NewExport(api.Body):
    dtype: ExportDType
    """float32, bfloat16 or float16; for gguf also q8_0, and q6_k, q5_k_m, q4_k_m, q3_k_m or iq4_xs
    if llama.cpp's program llama-quantize is installed."""
    kind: ExportKind | None = None
    """full, merged, merged_original, adapter or gguf; null exports the full model as it was
    trained, in the first kind that has the format.

    merged merges the adapter into the base model it was trained with, dequantised if necessary;
    merged_original, offered if that base was rounded or quantised, into the base as saved. gguf is
    one file for llama.cpp and Ollama, an adapter merged.
    """


class ExportOut(api.Out):
    id: int
    run_id: int
    kind: ExportKind
    dtype: ExportDType
    status: TaskStatus
    phase: str
    progress: float
    measured: dict[str, float]
    """The effect of the conversion on weights and perplexity; empty until it has succeeded."""
    files: list[ArtifactOut]
    error: TaskErrorOut | None
    waiting: api.WaitingOut | None
    """Why it is waiting; null once it has started."""
    created_at: datetime
    finished_at: datetime | None


@exports_router.post("", status_code=201)
def request(run_id: api.Id, new: NewExport, db: DB, config: Config) -> ExportOut:
    """Queue an export. Small ones run during training, others when no run needs the slot."""
    quantiser = exports.find_llama_quantize(config.llama_quantize)
    created = exports.create(db, run_id, new.dtype, new.kind, config.runs, quantiser)
    return _export_out(db, created, config)


@exports_router.get("")
def newest(run_id: api.Id, db: DB, config: Config) -> api.Listing[ExportOut]:
    runs.get(db, run_id)
    found = exports.list_for_run(db, run_id)
    return api.Listing.complete(_export_out(db, export, config) for export in found)


@exports_router.get("/{export_id}")
def show(run_id: api.Id, export_id: api.Id, db: DB, config: Config) -> ExportOut:
    return _export_out(db, exports.get(db, run_id, export_id), config)


@exports_router.delete("/{export_id}", status_code=204)
def delete(run_id: api.Id, export_id: api.Id, db: DB, config: Config) -> None:
    """Delete an export and its files; stops it if it is in progress."""
    exports.delete(db, run_id, export_id, config.runs)


@exports_router.post("/{export_id}/model", status_code=201)
def offer(run_id: api.Id, export_id: api.Id, db: DB, config: Config) -> ModelOut:
    """Add the export to the models that runs can start from."""
    return models.model_out(exports.register_model(db, run_id, export_id, config.runs))


@exports_router.get("/{export_id}/log", response_class=PlainTextResponse, name="log")
def export_log(run_id: api.Id, export_id: api.Id, db: DB, config: Config) -> str:
    """Return the last lines of the export's log."""
    folder = _export_folder(exports.get(db, run_id, export_id), config)
    return "\n".join(artifacts.read_log(folder.log, None, LOG_LINES).lines)


@exports_router.get("/{export_id}/files/{name:path}")
def file(run_id: api.Id, export_id: api.Id, name: str, db: DB, config: Config) -> FileResponse:
    folder = _export_folder(exports.get(db, run_id, export_id), config)
    path = artifacts.find_file(folder.files, name)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


@exports_router.get("/{export_id}/zip", response_class=StreamingResponse)
def whole(run_id: api.Id, export_id: api.Id, db: DB, config: Config) -> StreamingResponse:
    """Download all files as a zip."""
    export = exports.get(db, run_id, export_id)
    if export.status is not TaskStatus.SUCCEEDED:
        raise ConflictError(
            f"Export {export_id} is {export.status}.", hint="Wait until it has succeeded."
        )
    plain = plain_file_name(runs.get(db, run_id).name) or "run"
    name = f"{plain}-{export.run_id}-{export.kind}-{export.dtype}"
    return _zip_response(_export_folder(export, config).files, name)


def _export_out(db: DB, export: Export, config: Config) -> ExportOut:
    files = artifacts.list_files(_export_folder(export, config).files)
    error = {
        "code": export.error_code,
        "message": export.error_message,
        "hint": export.error_hint,
    }
    fields = export.model_dump() | {
        "progress": export.share,
        "files": [ArtifactOut(name=file_info.name, bytes=file_info.bytes) for file_info in files],
        "error": error if export.error_code else None,
        "waiting": api.waiting_out(overview.explain_work_wait(db, export)),
    }
    return ExportOut.model_validate(fields)


def _export_folder(export: Export, config: Config) -> ExportDir:
    return RunDir(config.runs / str(export.run_id)).export(export.id or 0)


def _zip_response(folder: Path, name: str) -> StreamingResponse:
    return StreamingResponse(
        stream_zip(folder, name),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}.zip"'},
    )


CHUNK_BYTES = 2**20
"""Bytes per read."""


def stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip of a folder's files, inside a top-level folder called `name`.

    Files are stored uncompressed: weights barely compress, and it would take minutes.
    """
    buffer = _ZipBuffer()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            arcname = f"{name}/{path.relative_to(folder).as_posix()}"
            entry = zipfile.ZipInfo.from_file(path, arcname)
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    yield buffer.drain()
    yield buffer.drain()


class _ZipBuffer(io.RawIOBase):
    """Holds what was written since the last drain. Not seekable, so zipfile never seeks back."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        chunk = bytes(memoryview(data))  # type: ignore[arg-type] # whatever zipfile writes
        self._held += chunk
        return len(chunk)

    def drain(self) -> bytes:
        content = bytes(self._held)
        self._held.clear()
        return content
