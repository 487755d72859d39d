"""What went wrong in lm-eval, in words: found in what it printed."""

import re
from collections.abc import Callable, Sequence

from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError

Explain = Callable[[re.Match[str], str], StudioError]
"""Returns the error for what was found, and the hub's address."""


def not_installed() -> StudioError:
    return UnavailableError(
        "lm-eval is not installed.", hint="Install it: pip install 'mantissa-studio[benchmarks]'"
    )


def explain(output: str, hub: str) -> StudioError:
    """Return the error for the output of a process that failed; `hub` is empty offline."""
    for pattern, build in _ERRORS:
        if found := pattern.search(output):
            return build(found, hub)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return UnavailableError("lm-eval failed without a message.", hint=_LOG)
    reason = lines[-1].rstrip(".")
    return UnavailableError(f"lm-eval failed: {reason}.", hint=_LOG)


_LOG = "The log of the task has the rest."


def _missing_package(found: re.Match[str], _hub: str) -> StudioError:
    package = found[1]
    if package == "lm_eval":
        return not_installed()
    return UnavailableError(
        f"This suite needs the package {package}, which is not installed.",
        hint="Install it: pip install 'mantissa-studio[benchmarks]'",
    )


def _unknown_task(found: re.Match[str], _hub: str) -> StudioError:
    task = found[1]
    return NotFoundError(
        f"The installed lm-eval has no task {task}.",
        hint="Update it: pip install --upgrade 'mantissa-studio[benchmarks]'",
    )


def _gated(_found: re.Match[str], hub: str) -> StudioError:
    error = InvalidError(
        "The data of this suite is gated: you must accept its terms first.",
        hint=f"Accept them at {hub}, then set STUDIO_HUB_TOKEN where the studio runs.",
    )
    error.code = "gated_model"
    return error


def _unreachable(_found: re.Match[str], hub: str) -> StudioError:
    return UnavailableError(
        f"The data of this suite cannot be downloaded: {hub} cannot be reached.",
        hint="Try again later, or measure a dataset of this studio, which needs no network.",
    )


def _offline(_found: re.Match[str], _hub: str) -> StudioError:
    return UnavailableError(
        "This studio is in offline mode.",
        hint="HF_HUB_OFFLINE is set where it runs. A dataset of this studio needs no network.",
    )


def _no_room(found: re.Match[str], _hub: str) -> StudioError:
    longest, context = int(found[1]), int(found[2])
    return InvalidError(
        f"Answers of up to {longest:,} tokens do not fit: this model reads {context:,} tokens at "
        "most.",
        hint="Choose shorter answers, or another suite.",
    )


def _out_of_memory(_found: re.Match[str], _hub: str) -> StudioError:
    return UnavailableError(
        "The model and its answers do not fit in memory.",
        hint="Try again when nothing else runs, or with a smaller model.",
    )


def _disk_full(_found: re.Match[str], _hub: str) -> StudioError:
    return UnavailableError("The disk is full.", hint="Free some space, then try again.")


_ERRORS: Sequence[tuple[re.Pattern[str], Explain]] = tuple(
    (re.compile(pattern), build)
    for pattern, build in (
        (r"ModuleNotFoundError: No module named '([\w]+)", _missing_package),
        (r"Tasks not found:\s(.+)", _unknown_task),
        (r"GatedRepoError|is a gated dataset|Access to dataset .* is restricted", _gated),
        (r"OfflineModeIsEnabled|offline mode is enabled", _offline),
        (
            r"Connect(ion)?Error|ConnectTimeout|ReadTimeout|LocalEntryNotFoundError|HfHubHTTPError",
            _unreachable,
        ),
        (r"requested max tokens to generate \((\d+)\) must be .* \((\d+)\)", _no_room),
        (r"OutOfMemoryError|not enough memory|MemoryError", _out_of_memory),
        (r"Errno 28\b", _disk_full),
    )
)
"""What it prints, and what that means; the first that is found counts."""
