"""The conclusions of a precision study, in words. Each statement is backed by a number."""

from collections.abc import Sequence
from typing import Literal

from studio.services.studies.study_reports import StudyReport
from studio.services.studies.study_statistics import (
    MIN_SEEDS,
    REFERENCE,
    PrecisionResult,
    SampleStats,
)
from studio.web.i18n import formatting, locale
from studio.web.i18n.locale import gettext, ngettext

_SMALL = 0.1
"""Ratios below this need more than two decimals."""

_NEGLIGIBLE = 0.005
"""A ratio this close to 1 counts as equal: the difference would be written as 0 %."""


def draw_conclusions(report: StudyReport) -> list[str]:
    """Return a sentence for each mode, then the caveats."""
    others = [result for result in report.findings if result.precision != REFERENCE]
    reference = [result for result in report.findings if result.precision == REFERENCE]
    prefix = gettext("So far: ") if report.going else ""
    return [
        *(prefix + _sentence(result) for result in others),
        *(
            gettext("%(mode)s: %(troubles)s.")
            % {"mode": REFERENCE, "troubles": gettext("; ").join(problems)}
            for result in reference
            if (problems := _problem_phrases(result))
        ),
        *_noise_caveat(reference),
        *_progress_caveat(report),
        *_device_caveat(report.devices),
    ]


def format_difference(value: float) -> str:
    """Format a difference of losses with two significant digits."""
    return formatting.number(float(f"{value:.2g}"))


def format_signed(value: float) -> str:
    return formatting.change(float(f"{value:.2g}"), "") or "0"


def format_share(value: float) -> str:
    """Format a share in percent, with tenths only below 1 %."""
    percent = value * 100
    has_tenths = 0.05 <= abs(percent) < 0.95  # noqa: PLR2004 -- what one decimal can show
    text = f"{percent:.1f}" if has_tenths else f"{percent:.0f}"
    digits = text.removesuffix("-0").replace("-", formatting.MINUS) or "0"
    return f"{digits}\N{NO-BREAK SPACE}%" if locale.is_english() else f"{digits}%"


def format_ratio(ratio: SampleStats) -> str:
    """Format a ratio, with its spread if known."""
    mean = f"{ratio.mean:.2f}" if ratio.mean >= _SMALL else f"{ratio.mean:.2g}"
    return mean if ratio.spread is None else f"{mean} ± {format_difference(ratio.spread)}"


def format_count(count: int, word: Literal["run", "seed", "step", "alarm"]) -> str:
    match word:
        case "run":
            template = ngettext("%(count)s run", "%(count)s runs", count)
        case "seed":
            template = ngettext("%(count)s seed", "%(count)s seeds", count)
        case "step":
            template = ngettext("%(count)s step", "%(count)s steps", count)
        case _:
            template = ngettext("%(count)s alarm", "%(count)s alarms", count)
    return template % {"count": count}


def _sentence(result: PrecisionResult) -> str:
    costs = _cost_phrase(result) if result.loss else ""
    parts = [f"{result.precision} {_loss_phrase(result)}{costs}", *_problem_phrases(result)]
    return gettext("; ").join(parts) + gettext(".")


def _loss_phrase(result: PrecisionResult) -> str:
    if result.gap is not None:
        return _comparison_phrase(result, result.gap)
    if result.failed + result.cancelled == result.runs:
        return gettext("has no results to compare with %(mode)s") % {"mode": REFERENCE}
    if result.not_finite:
        template = gettext("has no finite validation loss (%(count)s of %(runs)s)")
        return template % {"count": result.not_finite, "runs": format_count(result.runs, "run")}
    template = gettext("has no validation loss to compare with %(mode)s (0 of %(runs)s)")
    return template % {"mode": REFERENCE, "runs": format_count(result.runs, "run")}


def _comparison_phrase(result: PrecisionResult, gap: SampleStats) -> str:
    step_text = "" if result.step is None else gettext(" at step %(step)s") % {"step": result.step}
    noise = result.noise.spread if result.noise else None
    phrase, details = _gap_phrase(result, gap)
    if noise is not None:
        details.append(gettext("seed noise ±%(noise)s") % {"noise": format_difference(noise)})
    details.append(format_count(gap.n, "seed"))
    if result.versus == "unknown":
        details.append(gettext("too few to judge"))
    return gettext("%(phrase)s (%(details)s)") % {
        "phrase": f"{phrase}{step_text}",
        "details": gettext(", ").join(details),
    }


def _gap_phrase(result: PrecisionResult, gap: SampleStats) -> tuple[str, list[str]]:
    """Return how a mode compares, and details for the brackets: the gap, unless it is named."""
    details = [gettext("gap %(gap)s") % {"gap": format_signed(gap.mean)}]
    if result.versus == "within":
        return gettext("equals %(mode)s within seed noise") % {"mode": REFERENCE}, details
    if result.lost is not None and result.lost > 0:
        template = gettext("lost %(share)s of %(mode)s's improvement")
        return template % {"share": format_share(result.lost), "mode": REFERENCE}, details
    if not gap.mean:
        return gettext("has the same loss as %(mode)s") % {"mode": REFERENCE}, details
    comparison = (
        gettext("is %(gap)s above %(mode)s")
        if gap.mean > 0
        else gettext("is %(gap)s below %(mode)s")
    )
    return comparison % {"gap": format_difference(abs(gap.mean)), "mode": REFERENCE}, []


def _cost_phrase(result: PrecisionResult) -> str:
    parts = []
    if result.speed_ratio is not None:
        parts.append(
            gettext("%(ratio)s times its speed") % {"ratio": format_ratio(result.speed_ratio)}
        )
    if result.memory_ratio is not None:
        parts.append(format_memory_ratio(result.memory_ratio))
    return gettext(", at %(costs)s") % {"costs": gettext(" and ").join(parts)} if parts else ""


def format_memory_ratio(ratio: float) -> str:
    if abs(ratio - 1) < _NEGLIGIBLE:
        return gettext("equal memory (within 0.5 %)")
    template = gettext("%(share)s more memory") if ratio > 1 else gettext("%(share)s less memory")
    return template % {"share": format_share(abs(ratio - 1))}


def _problem_phrases(result: PrecisionResult) -> list[str]:
    """Return what went wrong, if anything."""
    runs = format_count(result.runs, "run")
    nonfinite = result.not_finite if result.gap is not None else 0
    phrases = (
        (result.failed, gettext("%(count)s of %(runs)s failed")),
        (result.cancelled, gettext("%(count)s of %(runs)s cancelled")),
        (nonfinite, gettext("%(lost)s without a finite validation loss")),
        (result.skipped_steps, gettext("%(steps)s skipped")),
        (result.broken_steps, gettext("%(steps)s with a NaN or infinite loss")),
        (result.alarms, format_count(result.alarms, "alarm")),
    )
    return [
        template
        % {
            "count": count,
            "runs": runs,
            "lost": format_count(count, "run"),
            "steps": format_count(count, "step"),
        }
        for count, template in phrases
        if count
    ]


def _noise_caveat(reference: Sequence[PrecisionResult]) -> list[str]:
    """Return a caveat if the seed noise is unknown."""
    finished = reference[0].noise.n if reference and reference[0].noise else 0
    if finished >= MIN_SEEDS:
        return []
    template = gettext(
        "Seed noise is unknown: %(mode)s has %(seeds)s with a validation loss; at least %(enough)s "
        "are needed."
    )
    return [
        template % {"seeds": format_count(finished, "seed"), "mode": REFERENCE, "enough": MIN_SEEDS}
    ]


def _progress_caveat(report: StudyReport) -> list[str]:
    if not report.going:
        return []
    ended, runs = len(report.runs) - report.going, format_count(len(report.runs), "run")
    return [gettext("%(count)s of %(runs)s ended.") % {"count": ended, "runs": runs}]


def _device_caveat(devices: Sequence[str]) -> list[str]:
    if len(devices) < 2:  # noqa: PLR2004 -- on one device all speeds are comparable
        return []
    template = gettext(
        "Speeds are not comparable: the runs used %(count)s kinds of device: %(devices)s."
    )
    return [template % {"count": len(devices), "devices": ", ".join(devices)}]
