"""Export a precision study, with the tables of its page, as Markdown or CSV."""

import csv
import io
from collections.abc import Mapping, Sequence

from studio.services.studies.study_reports import Incident, IncidentKind, StudyReport
from studio.services.studies.study_statistics import (
    REFERENCE,
    GapVerdict,
    PrecisionResult,
    SampleStats,
    State,
)
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.study_conclusions import (
    draw_conclusions,
    format_count,
    format_difference,
    format_memory_ratio,
    format_ratio,
    format_share,
    format_signed,
)

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
        format_loss(one.loss),
        format_gap(one.gap),
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


def format_loss(found: SampleStats | None) -> str:
    if found is None:
        return formatting.NO_VALUE
    spread = "" if found.spread is None else f" ± {format_difference(found.spread)}"
    return f"{formatting.number(found.mean)}{spread} (n = {found.n})"


def format_gap(found: SampleStats | None) -> str:
    if found is None:
        return formatting.NO_VALUE
    spread = "" if found.spread is None else f" ± {format_difference(found.spread)}"
    return f"{format_signed(found.mean)}{spread} (n = {found.n})"


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
        f"{study.max_steps} steps." if study.max_steps else "number of steps as in the recipe."
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
    writer.writerows(_csv_row(result) for result in report.findings)
    return file.getvalue()


_CSV_COLUMNS = (
    "precision",
    "runs",
    "failed",
    "cancelled",
    "step",
    "eval_loss",
    "eval_loss_sd",
    "eval_loss_n",
    "gap",
    "gap_sd",
    "gap_n",
    "seed_noise_sd",
    "against_noise",
    "improvement_lost",
    "tokens_per_second",
    "speed_ratio",
    "speed_ratio_sd",
    "peak_memory_bytes",
    "memory_ratio",
    "estimated_memory_bytes",
    "skipped_steps",
    "broken_steps",
    "alarms",
)


def _csv_row(result: PrecisionResult) -> list[object]:
    return [
        result.precision,
        result.runs,
        result.failed,
        result.cancelled,
        result.step,
        *_estimate_parts(result.loss),
        *_estimate_parts(result.gap),
        result.noise.spread if result.noise else None,
        result.versus,
        result.lost,
        result.speed.mean if result.speed else None,
        result.speed_ratio.mean if result.speed_ratio else None,
        result.speed_ratio.spread if result.speed_ratio else None,
        result.memory,
        result.memory_ratio,
        result.memory_estimate,
        result.skipped_steps,
        result.broken_steps,
        result.alarms,
    ]


def _estimate_parts(stats: SampleStats | None) -> Sequence[float | None]:
    return (stats.mean, stats.spread, stats.n) if stats else (None, None, None)


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_escape_markdown, line)) + " |" for line in lines)


def _escape_markdown(text: str) -> str:
    """Escape user text so that it is not read as markup or as the end of a cell."""
    for sign in "\\|*_`[]<>#":
        text = text.replace(sign, "\\" + sign)
    return text
