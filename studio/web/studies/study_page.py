"""Precision studies: the form that queues the runs, the report on their results, and its export."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import METHODS
from studio.recipe.precision import PRECISIONS
from studio.services import experiments, recent_ends
from studio.services.studies import studies, study_reports
from studio.services.studies.study_reports import Incident, IncidentKind, StudyReport
from studio.services.studies.study_statistics import (
    REFERENCE,
    GapVerdict,
    PrecisionResult,
    SampleStats,
    State,
)
from studio.services.workers import workers
from studio.web.api.experiments.experiments import report_out
from studio.web.forms import choices
from studio.web.http.deps import DB
from studio.web.i18n import formatting
from studio.web.i18n.locale import ENGLISH, gettext, set_language
from studio.web.rendering.colours import DASHES, run_hue
from studio.web.rendering.render import attachment_response, page, redirect
from studio.web.runs import seen_runs
from studio.web.study_conclusions import (
    draw_conclusions,
    format_count,
    format_difference,
    format_memory_ratio,
    format_ratio,
    format_share,
    format_signed,
)

router = APIRouter(prefix="/reports/precision", include_in_schema=False)


HEADINGS = (
    "Precision",
    "Runs",
    "Validation loss",
    f"Gap to {REFERENCE}",
    "Against seed noise",
    "Improvement lost",
    "Tokens per second",
    "Peak memory",
    "Estimated memory",
    "Skipped steps",
    "NaN or infinite losses",
    "Alarms",
)

STATE_LABELS: Mapping[State, str] = {
    "done": "done",
    "going": "running",
    "waiting": "waiting",
    "failed": "failed",
    "cancelled": "cancelled",
}
INCIDENT_HEADINGS = ("Step", "Precision", "Seed", "What")
INCIDENT_LABELS: Mapping[IncidentKind, str] = {
    "alarm": "alarm",
    "skipped": "skipped",
    "broken": "with a NaN or infinite loss",
}
VERSUS_LABELS: Mapping[GapVerdict, str] = {
    "reference": "reference",
    "nothing": formatting.NO_VALUE,
    "unknown": "unknown",
    "within": "within",
    "above": "beyond, above",
    "below": "beyond, below",
}


def finding_row(one: PrecisionResult) -> list[str]:
    """Format a finding as the cells under `HEADINGS`."""
    return [
        one.precision,
        format_runs(one),
        _format_stats(one.loss, formatting.number),
        _format_stats(one.gap, format_signed),
        format_versus(one),
        formatting.NO_VALUE if one.lost is None else format_share(one.lost),
        format_speed(one),
        format_peak_memory(one),
        format_memory_estimate(one),
        str(one.skipped_steps),
        str(one.broken_steps),
        str(one.alarms),
    ]


def format_runs(one: PrecisionResult) -> str:
    counts = [
        f"{one.states[key]} {gettext(word)}"
        for key, word in STATE_LABELS.items()
        if one.states.get(key)
    ]
    return ", ".join(counts)


def _format_stats(found: SampleStats | None, format_mean: Callable[[float], str]) -> str:
    if found is None:
        return formatting.NO_VALUE
    spread = "" if found.spread is None else f" ± {format_difference(found.spread)}"
    return f"{format_mean(found.mean)}{spread} (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{found.n})"


def format_versus(one: PrecisionResult) -> str:
    spread = one.noise.spread if one.noise else None
    verdict = gettext(VERSUS_LABELS[one.versus])
    return (
        verdict
        if spread is None or one.versus == "nothing"
        else f"{verdict} (±{format_difference(spread)})"
    )


def format_speed(one: PrecisionResult) -> str:
    if one.speed is None:
        return formatting.NO_VALUE
    mean = formatting.number(one.speed.mean)
    if one.speed_ratio is None:
        return mean
    return f"{mean} ({format_ratio(one.speed_ratio)} \N{MULTIPLICATION SIGN})"


def format_peak_memory(one: PrecisionResult) -> str:
    if one.memory is None:
        return formatting.NO_VALUE
    if one.memory_ratio is None:
        return formatting.metric_value(one.memory, "_bytes")
    return (
        f"{formatting.metric_value(one.memory, '_bytes')} ({format_memory_ratio(one.memory_ratio)})"
    )


def format_memory_estimate(one: PrecisionResult) -> str:
    if one.memory_estimate is None:
        return gettext("unknown")
    return formatting.estimated_size(one.memory_estimate, one.memory)


def incident_row(one: Incident) -> list[str]:
    """Format an incident as the cells under `INCIDENT_HEADINGS`."""
    steps = str(one.first) if one.first == one.last else f"{one.first} to {one.last}"
    description = (
        one.text or f"{format_count(one.count, 'step')} {gettext(INCIDENT_LABELS[one.kind])}"
    )
    return [steps, one.precision, str(one.seed), description]


def to_markdown(report: StudyReport) -> str:
    """Write the report as a Markdown document."""
    study = report.study
    intro = f"Seeds {', '.join(map(str, study.seeds))}; " + (
        f"{format_count(study.max_steps, 'step')}."
        if study.max_steps
        else "number of steps as in the recipe."
    )
    parts = [f"# Precision study: {_escape_markdown(study.name)}", intro]
    parts.append(
        "\n".join(f"* {_escape_markdown(sentence)}" for sentence in draw_conclusions(report))
    )
    parts.append(_markdown_table(HEADINGS, [finding_row(item) for item in report.findings]))
    if report.answers and report.answers.by_mode:
        differing = report.answers.by_mode.items()
        rows = [[mode, f"{count} of {report.answers.prompts}"] for mode, count in differing]
        parts.append(_markdown_table(("Precision", f"Answers that differ from {REFERENCE}"), rows))
    if report.timeline.incidents:
        parts.append(
            _markdown_table(
                INCIDENT_HEADINGS, [incident_row(item) for item in report.timeline.incidents]
            )
        )
    return "\n\n".join(parts) + "\n"


def to_csv(report: StudyReport) -> str:
    """Write the findings as CSV, with bare numbers."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(_CSV_COLUMNS)
    writer.writerows(
        [_csv_cell(result, attribute) for attribute in _CSV_COLUMNS.values()]
        for result in report.findings
    )
    return file.getvalue()


_CSV_COLUMNS = {
    "precision": "precision",
    "runs": "runs",
    "failed": "failed",
    "cancelled": "cancelled",
    "step": "step",
    "eval_loss": "loss.mean",
    "eval_loss_sd": "loss.spread",
    "eval_loss_n": "loss.n",
    "gap": "gap.mean",
    "gap_sd": "gap.spread",
    "gap_n": "gap.n",
    "seed_noise_sd": "noise.spread",
    "against_noise": "versus",
    "improvement_lost": "lost",
    "tokens_per_second": "speed.mean",
    "speed_ratio": "speed_ratio.mean",
    "speed_ratio_sd": "speed_ratio.spread",
    "peak_memory_bytes": "memory",
    "memory_ratio": "memory_ratio",
    "estimated_memory_bytes": "memory_estimate",
    "skipped_steps": "skipped_steps",
    "broken_steps": "broken_steps",
    "alarms": "alarms",
}
"""The attribute of a result in each column; empty if a part of it is None."""


def _csv_cell(result: PrecisionResult, attribute: str) -> Any:  # noqa: ANN401 -- a text, a number or None
    value: Any = result
    for name in attribute.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_escape_markdown, line)) + " |" for line in lines)


def _escape_markdown(text: str) -> str:
    """Escape user text so that it is not read as markup or as the end of a cell."""
    for sign in "\\|*_`[]<>#":
        text = text.replace(sign, "\\" + sign)
    return text


MAX_LISTED = 100
DEFAULT_PRECISION = "bf16"
"""Compared with the reference if every other precision has a warning."""

Source = Annotated[str, Query(alias="from", max_length=50)]
Format = Annotated[Literal["html", "md", "csv", "json"], Query(alias="format")]
MEDIA_TYPES = {"md": "text/markdown", "csv": "text/csv", "json": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDraft:
    """A study as far as the form is filled in; typed text is kept as it is."""

    source: str
    modes: Sequence[str] | None = None
    """None before the user has chosen: then those of `_preselected`."""
    seeds: str = str(studies.DEFAULT_SEEDS)
    max_steps: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionLine:
    """How to draw the line of a mode."""

    key: str
    label: str
    hue: int
    """That of its first run: the mode has its colour in a comparison of these runs, too."""
    dash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChart:
    """Memory of each mode in bytes, estimated beside measured."""

    rows: Sequence[tuple[PrecisionLine, float | None, float | None, str, str]]
    """Line, estimated bytes, measured bytes, and both as text, the measured ones first."""
    max_bytes: float
    measurement_notes: Sequence[str]
    """How memory was measured; this may differ between the runs of a study."""


@router.get("")
def newest(request: Request, db: DB) -> Response:
    return page(
        request,
        "studies/list.html",
        studies=studies.newest(db, limit=MAX_LISTED),
        newest=next(iter(experiments.newest(db, limit=1)), None),
    )


@router.get("/new")
def new(request: Request, db: DB, source: Source = "") -> Response:
    return _form(request, db, StudyDraft(source=source))


@router.post("/new")
def create(
    request: Request,
    db: DB,
    source: Annotated[str, Form(alias="from", max_length=50)] = "",
    modes: Annotated[tuple[str, ...], Form()] = (),
    seeds: Annotated[str, Form(max_length=20)] = "",
    max_steps: Annotated[str, Form(max_length=20)] = "",
) -> Response:
    draft = StudyDraft(source=source, modes=modes, seeds=seeds.strip(), max_steps=max_steps.strip())
    experiment, recipe = studies.resolve_source(db, source)
    try:
        plan = studies.StudyPlan(
            modes=[REFERENCE, *modes],
            seeds=_parse_count(draft.seeds, "seeds"),
            max_steps=_parse_count(draft.max_steps, "max_steps") if draft.max_steps else None,
        )
        own_experiment = experiments.own_or_copy(db, experiment, parent=source)
        study = studies.create(db, own_experiment, plan, recipe)
    except InvalidError as error:
        return _form(request, db, draft, error)
    return redirect(request, f"/reports/precision/{study.id}")


@router.get("/{study_id}")
def show(request: Request, study_id: int, db: DB, shape: Format = "html") -> Response:
    if shape == "json":
        return _attachment(report_out(db, study_id).model_dump_json(indent=1), "json", study_id)
    report = study_reports.build_report(db, study_id)
    if shape == "md":
        # Exports are always in English.
        set_language(ENGLISH)
        return _attachment(to_markdown(report), "md", study_id)
    if shape == "csv":
        return _attachment(to_csv(report), "csv", study_id)
    lines = _precision_lines(report)
    response = page(
        request,
        "studies/show.html",
        report=report,
        study=report.study,
        verdict=draw_conclusions(report),
        heads=HEADINGS,
        memory=_memory_chart(report, lines),
        incidents=[incident_row(item) for item in report.timeline.incidents],
        rows=[(item, finding_row(item)) for item in report.findings],
        lines=lines,
        drawn=json.dumps([asdict(line) for line in lines]),
        reference=REFERENCE,
        unit=METHODS[report.runs[0].recipe.method].metrics.unit("loss") if report.runs else "",
    )
    if ended_at := recent_ends.study_end(db, study_id):
        seen_runs.mark_seen(request, response, recent_ends.group_key(report.study, ended_at))
    return response


@router.post("/{study_id}/delete")
def delete(request: Request, study_id: int, db: DB) -> Response:
    experiment_id = studies.get(db, study_id).experiment_id
    studies.delete(db, study_id)
    return redirect(request, f"/experiments/{experiment_id}")


def _form(
    request: Request, db: Session, draft: StudyDraft, problem: InvalidError | None = None
) -> Response:
    experiment, recipe = studies.resolve_source(db, draft.source)
    hardware = workers.training_hardware(db)
    options = [
        choices.PrecisionOption(
            mode=mode,
            unavailable_reason=studies.explain_refusal(db, recipe, mode.name),
            warning=mode.warning(hardware),
        )
        for mode in PRECISIONS.values()
    ]
    problems = (
        {_form_field(problem): f"{problem.message} {problem.hint}".strip()} if problem else {}
    )
    return page(
        request,
        "studies/new.html",
        status=422 if problem else 200,
        experiment=experiment,
        recipe=recipe,
        draft=draft,
        problems=problems,
        options=options,
        chosen=_preselected(options) if draft.modes is None else set(draft.modes),
        reference=REFERENCE,
        most=studies.MAX_RUNS,
    )


def _preselected(options: Sequence[choices.PrecisionOption]) -> set[str]:
    """Return the precisions without a warning here, at least one besides the reference.

    On a CPU that only emulates bfloat16, that one is bf16: its results are accurate, only slow.

    """
    without_warning: set[str] = {
        option.mode.name
        for option in options
        if not option.warning and not option.unavailable_reason
    }
    return without_warning if without_warning - {REFERENCE} else {REFERENCE, DEFAULT_PRECISION}


def _form_field(problem: InvalidError) -> str:
    """Return the name of the form field that the invalid recipe value came from."""
    return problem.param.rpartition(".")[2]


def _parse_count(text: str, param: str) -> int:
    """Parse a number of seeds or steps.

    Raises:
        InvalidError: it is not a whole number of at least 1.

    """
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise InvalidError("Enter a whole number of at least 1.", param=param)
    return int(text)


def _precision_lines(report: StudyReport) -> list[PrecisionLine]:
    hue_counts: Counter[int] = Counter()
    lines = []
    for mode in (result.precision for result in report.findings):
        ids = [run.id or 0 for run in report.runs if run.recipe.precision == mode]
        hue = run_hue(min(ids, default=0))
        dash = hue_counts[hue] % len(DASHES)
        lines.append(PrecisionLine(key=mode, label=mode, hue=hue, dash=dash))
        hue_counts[hue] += 1
    return lines


def _memory_chart(report: study_reports.StudyReport, lines: Sequence[PrecisionLine]) -> MemoryChart:
    """Return the estimated and the measured memory of each mode."""
    sizes = [(result.memory_estimate, result.memory) for result in report.findings]
    rows = [
        (
            line,
            *pair,
            format_peak_memory(result),
            format_memory_estimate(result),
        )
        for line, pair, result in zip(lines, sizes, report.findings, strict=True)
    ]
    methods = {
        formatting.memory_measure_sentence(run.resolved) for run in report.runs if run.resolved
    }
    largest = max((size for pair in sizes for size in pair if size is not None), default=1)
    return MemoryChart(rows=rows, max_bytes=largest, measurement_notes=sorted(methods))


def _attachment(text: str, ending: str, study_id: int) -> Response:
    name = f"precision-study-{study_id}.{ending}"
    return attachment_response(text, name, MEDIA_TYPES[ending])
