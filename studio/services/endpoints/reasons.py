"""Why an endpoint waits, stopped or failed, as text for people."""

from collections.abc import Sequence

GAVE_UP = "gave its slot up for other work; starts again on the next request"
UNUSED = "had no request for a while; starts again on the next request"
NO_SLOT = "waiting for a slot"
NO_ANSWER = "It no longer answered."
SERVICE = "The inference service"
SERVICE_HINT = "The file speaker.log in the studio's home folder says more."


def explain_end(title: str, code: int | None) -> str:
    """Return how a process ended; `title` is what it is called, and a negative code a signal."""
    if code is None:
        return f"{title} ended."
    if code < 0:
        return f"{title} ended with signal {-code}."
    return f"{title} ended with code {code}."


def explain_log(lines: Sequence[str]) -> str:
    """Return the last lines of a log."""
    said = " / ".join(line.strip() for line in lines if line.strip())
    return f"Its log ends with: {said}" if said else "It wrote nothing to its log."


def explain_slow_start(seconds: float) -> str:
    return f"It was not ready after {seconds:.0f} s."


def explain_retry(seconds: float) -> str:
    return f"starts again in {seconds:.0f} s"
