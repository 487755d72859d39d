"""A report as one HTML file that needs no network: its style is inside, and nothing runs in it."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fastapi.responses import HTMLResponse, Response

import studio
from studio.db.tables import Run
from studio.web.rendering import static_files
from studio.web.rendering.render import (
    VARY_HEADERS,
    attachment_response,
    plain_file_name,
    render_document,
)

MAX_BYTES = 2_000_000
"""The largest report: all that has no natural limit is shortened, so that this holds."""

MAX_NAMED_RUNS = 6
"""Runs whose numbers are in the name of a file."""
_STYLE_PLACE = "<style></style>"
"""Filled in after rendering, so that nothing escapes or redacts the style."""


def render_report(template: str, /, **context: Any) -> str:  # noqa: ANN401 -- any template variable
    """Render a report in the language of the request."""
    html = render_document(
        template, policy=_policy(), icon=_icon(), version=studio.__version__, **context
    )
    return html.replace(_STYLE_PLACE, f"<style>{_style()}</style>", 1)


def run_report_name(run: Run) -> str:
    """Return the name of a run's report, without its ending."""
    return f"{plain_file_name(run.name) or 'run'}-{run.id}-report"


def comparison_report_name(run_ids: Sequence[int], title: str = "") -> str:
    """Return the name of a comparison's report, without its ending."""
    numbers = "-".join(map(str, run_ids[:MAX_NAMED_RUNS]))
    return f"{plain_file_name(title) or f'comparison-{numbers}'}-report"


def respond(html: str, name: str, *, download: bool) -> Response:
    """Return a report as a page, or as a file to save."""
    if download:
        return attachment_response(html, f"{name}.html", "text/html")
    policy = f"{_policy()}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return HTMLResponse(html, headers={**VARY_HEADERS, "Content-Security-Policy": policy})


@lru_cache(maxsize=1)
def _style() -> str:
    sheets = (static_files.shared_folder().content(n) for n in static_files.REPORT_STYLESHEETS)
    return b"\n".join(sheets).decode()


@lru_cache(maxsize=1)
def _policy() -> str:
    """Return a policy that allows this style and pictures inside the file, and nothing else."""
    digest = b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:"


@lru_cache(maxsize=1)
def _icon() -> str:
    icon = static_files.shared_folder().content("icon.svg")
    return f"data:image/svg+xml;base64,{b64encode(icon).decode()}"
