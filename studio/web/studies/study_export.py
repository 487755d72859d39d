"""A precision study to take elsewhere: the very tables of its page, as Markdown and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence

from studio.services.studies.incidents import Incident, IncidentKind
from studio.services.studies.study_reports import StudyReport
from studio.services.studies.study_statistics import (
    REFERENCE,
    GapVerdict,
    PrecisionResult,
    SampleStats,
    State,
)
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext
from studio.web.study_conclusions import brief, memory, plural, share, signed, times, verdict

HEADS = (
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
    "Broken losses",
    "Alarms",
)

STATES: Mapping[State, str] = {
    "done": "done",
    "going": "running",
    "waiting": "waiting",
    "failed": "failed",
    "cancelled": "cancelled",
}
INCIDENT_HEADS = ("Step", "Precision", "Seed", "What")
INCIDENTS: Mapping[IncidentKind, str] = {
    "alarm": "alarm",
    "skipped": "skipped",
    "broken": "with a loss that is no number",
}
VERSUS: Mapping[GapVerdict, str] = {
    "reference": "reference",
    "nothing": formatting.NOTHING,
    "unknown": "unknown",
    "within": "within",
    "above": "beyond, above",
    "below": "beyond, below",
}


def row(one: PrecisionResult) -> list[str]:
    """Write a finding as the cells under `HEADS`."""
    return [
        one.precision,
        runs(one),
        loss(one.loss),
        gap(one.gap),
        against(one),
        formatting.NOTHING if one.lost is None else share(one.lost),
        speed(one),
        peak(one),
        guessed(one),
        str(one.skipped_steps),
        str(one.broken_steps),
        str(one.alarms),
    ]


def runs(one: PrecisionResult) -> str:
    told = [
        f"{one.states[key]} {gettext(word)}" for key, word in STATES.items() if one.states.get(key)
    ]
    return ", ".join(told)


def loss(found: SampleStats | None) -> str:
    if found is None:
        return formatting.NOTHING
    spread = "" if found.spread is None else f" ± {brief(found.spread)}"
    return f"{formatting.number(found.mean)}{spread} (n = {found.n})"


def gap(found: SampleStats | None) -> str:
    if found is None:
        return formatting.NOTHING
    spread = "" if found.spread is None else f" ± {brief(found.spread)}"
    return f"{signed(found.mean)}{spread} (n = {found.n})"


def against(one: PrecisionResult) -> str:
    spread = one.noise.spread if one.noise else None
    told = gettext(VERSUS[one.versus])
    return told if spread is None or one.versus == "nothing" else f"{told} (±{brief(spread)})"


def speed(one: PrecisionResult) -> str:
    if one.speed is None:
        return formatting.NOTHING
    mean = formatting.number(one.speed.mean)
    if one.speed_ratio is None:
        return mean
    return f"{mean} ({times(one.speed_ratio)} \N{MULTIPLICATION SIGN})"


def peak(one: PrecisionResult) -> str:
    if one.memory is None:
        return formatting.NOTHING
    if one.memory_ratio is None:
        return formatting.measure(one.memory, "_bytes")
    return f"{formatting.measure(one.memory, '_bytes')} ({memory(one.memory_ratio)})"


def guessed(one: PrecisionResult) -> str:
    if one.memory_estimate is None:
        return gettext("not known")
    return formatting.guessed(one.memory_estimate, one.memory)


def incident(one: Incident) -> list[str]:
    """Write what befell a run as the cells under `INCIDENT_HEADS`."""
    place = str(one.first) if one.first == one.last else f"{one.first} to {one.last}"
    told = one.text or f"{plural(one.count, 'step')} {gettext(INCIDENTS[one.kind])}"
    return [place, one.precision, str(one.seed), told]


def markdown(report: StudyReport) -> str:
    """Write the report as a Markdown document."""
    study = report.study
    about = f"Seeds {', '.join(map(str, study.seeds))}; " + (
        f"{study.max_steps} steps." if study.max_steps else "as many steps as the recipe says."
    )
    parts = [f"# Precision study: {_plain(study.name)}", about]
    parts.append("\n".join(f"* {_plain(sentence)}" for sentence in verdict(report)))
    parts.append(_table(HEADS, [row(one) for one in report.findings]))
    if report.answers and report.answers.by_mode:
        differing = report.answers.by_mode.items()
        rows = [[mode, f"{count} of {report.answers.prompts}"] for mode, count in differing]
        parts.append(_table(("Precision", f"Answers unlike {REFERENCE}'s"), rows))
    if report.timeline.incidents:
        parts.append(_table(INCIDENT_HEADS, [incident(one) for one in report.timeline.incidents]))
    return "\n\n".join(parts) + "\n"


def table(report: StudyReport) -> str:
    """Write the findings as CSV, numbers bare."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_bare(one) for one in report.findings)
    return file.getvalue()


_COLUMNS = (
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


def _bare(one: PrecisionResult) -> list[object]:
    return [
        one.precision,
        one.runs,
        one.failed,
        one.cancelled,
        one.step,
        *_parts(one.loss),
        *_parts(one.gap),
        one.noise.spread if one.noise else None,
        one.versus,
        one.lost,
        one.speed.mean if one.speed else None,
        one.speed_ratio.mean if one.speed_ratio else None,
        one.speed_ratio.spread if one.speed_ratio else None,
        one.memory,
        one.memory_ratio,
        one.memory_estimate,
        one.skipped_steps,
        one.broken_steps,
        one.alarms,
    ]


def _parts(found: SampleStats | None) -> Sequence[float | None]:
    return (found.mean, found.spread, found.n) if found else (None, None, None)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_plain, line)) + " |" for line in lines)


def _plain(text: str) -> str:
    """Keep people's own words from being read as markup or as the end of a cell."""
    for sign in "\\|*_`[]<>#":
        text = text.replace(sign, "\\" + sign)
    return text
