"""What a precision study comes to, in words. No word stands here without the number behind it."""

from collections.abc import Sequence

from studio.services.evidence import ENOUGH, REFERENCE, Estimate, Finding
from studio.services.reports import Report
from studio.web import words

MINUS = "\N{MINUS SIGN}"

_SMALL = 0.1
"""Below it two decimals would hide the digits of a ratio."""

_SLIGHT = 0.005
"""A ratio nearer to one than this is no difference: it would be written as 0 %."""


def verdict(report: Report) -> list[str]:
    """Return a sentence for each mode, then what to know before believing them."""
    others = [one for one in report.findings if one.precision != REFERENCE]
    reference = [one for one in report.findings if one.precision == REFERENCE]
    prefix = "So far: " if report.going else ""
    return [
        *(prefix + _sentence(one) for one in others),
        *(f"{REFERENCE}: {'; '.join(found)}." for one in reference if (found := _troubles(one))),
        *_noise(reference),
        *_progress(report),
        *_devices(report.devices),
    ]


def brief(value: float) -> str:
    """Write a difference of losses with the two digits that matter."""
    return words.number(float(f"{value:.2g}"))


def signed(value: float) -> str:
    return words.change(float(f"{value:.2g}"), "") or "0"


def share(value: float) -> str:
    """Write a share in percent; tenths only where they are the news."""
    percent = value * 100
    has_tenths = 0.05 <= abs(percent) < 0.95  # noqa: PLR2004 -- what one decimal can show
    text = f"{percent:.1f}" if has_tenths else f"{percent:.0f}"
    return f"{text.removesuffix('-0').replace('-', MINUS) or '0'}\N{NO-BREAK SPACE}%"


def times(ratio: Estimate) -> str:
    """Write a ratio, with its spread where that is known."""
    mean = f"{ratio.mean:.2f}" if ratio.mean >= _SMALL else f"{ratio.mean:.2g}"
    return mean if ratio.spread is None else f"{mean} ± {brief(ratio.spread)}"


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _sentence(one: Finding) -> str:
    costs = _costs(one) if one.loss else ""
    return "; ".join([f"{one.precision} {_loss(one)}{costs}", *_troubles(one)]) + "."


def _loss(one: Finding) -> str:
    if one.gap is not None:
        return _compared(one, one.gap)
    if one.failed + one.cancelled == one.runs:
        return f"left nothing to compare with {REFERENCE}"
    if one.not_finite:
        return f"has no finite validation loss ({one.not_finite} of {plural(one.runs, 'run')})"
    return f"has no validation loss to compare with {REFERENCE} (0 of {plural(one.runs, 'run')})"


def _compared(one: Finding, gap: Estimate) -> str:
    place = "" if one.step is None else f" at step {one.step}"
    noise = one.noise.spread if one.noise else None
    said, told = _words(one, gap)
    told += [] if noise is None else [f"seed noise ±{brief(noise)}"]
    told += [plural(gap.n, "seed") + (", too few to judge" if one.versus == "unknown" else "")]
    return f"{said}{place} ({', '.join(told)})"


def _words(one: Finding, gap: Estimate) -> tuple[str, list[str]]:
    """Say where a mode ended; the gap follows in brackets unless it is what is said."""
    bracket = [f"gap {signed(gap.mean)}"]
    if one.versus == "within":
        return f"equals {REFERENCE} within seed noise", bracket
    if one.lost is not None and one.lost > 0:
        return f"lost {share(one.lost)} of {REFERENCE}'s improvement", bracket
    if not gap.mean:
        return f"has {REFERENCE}'s loss", bracket
    return f"is {brief(abs(gap.mean))} {'above' if gap.mean > 0 else 'below'} {REFERENCE}", []


def _costs(one: Finding) -> str:
    parts = []
    if one.speed_ratio is not None:
        parts.append(f"{times(one.speed_ratio)} times its speed")
    if one.memory_ratio is not None:
        parts.append(memory(one.memory_ratio))
    return f", at {' and '.join(parts)}" if parts else ""


def memory(ratio: float) -> str:
    if abs(ratio - 1) < _SLIGHT:
        return "equal memory (within 0.5 %)"
    return f"{share(abs(ratio - 1))} {'more' if ratio > 1 else 'less'} memory"


def _troubles(one: Finding) -> list[str]:
    """Say what went wrong, where something did."""
    found = []
    if one.failed:
        found.append(f"{one.failed} of {plural(one.runs, 'run')} failed")
    if one.cancelled:
        found.append(f"{one.cancelled} of {plural(one.runs, 'run')} cancelled")
    if one.not_finite and one.gap is not None:
        found.append(f"{plural(one.not_finite, 'run')} without a finite validation loss")
    if one.skipped_steps:
        found.append(f"{plural(one.skipped_steps, 'step')} skipped by the loss scaler")
    if one.broken_steps:
        found.append(f"{plural(one.broken_steps, 'step')} with a loss that is no number")
    if one.alarms:
        found.append(plural(one.alarms, "alarm"))
    return found


def _noise(reference: Sequence[Finding]) -> list[str]:
    """Say that noise is unknown, where it is."""
    finished = reference[0].noise.n if reference and reference[0].noise else 0
    if finished >= ENOUGH:
        return []
    have = f"{plural(finished, 'seed')} of {REFERENCE}"
    return [f"Seed noise is unknown: {have} with a validation loss, and it takes {ENOUGH}."]


def _progress(report: Report) -> list[str]:
    if not report.going:
        return []
    return [f"{len(report.runs) - report.going} of {plural(len(report.runs), 'run')} have ended."]


def _devices(devices: Sequence[str]) -> list[str]:
    if len(devices) < 2:  # noqa: PLR2004 -- on one device all speeds compare
        return []
    named = ", ".join(devices)
    return [f"Speeds do not compare: the runs trained on {len(devices)} kinds of device: {named}."]
