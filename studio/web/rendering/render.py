"""Render a page or one of its blocks, or redirect."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from jinja2 import (
    Environment,
    FileSystemBytecodeCache,
    FileSystemLoader,
    StrictUndefined,
    pass_context,
)
from jinja2.bccache import Bucket
from jinja2.runtime import Context
from jinja2_fragments import render_block
from markupsafe import Markup

from studio import resources
from studio.db.session import read_session
from studio.errors import StudioError
from studio.intake.row_formats.image_marks import find_marks
from studio.intake.row_formats.message_formats import to_text
from studio.intake.row_formats.tagged_words import split_segments
from studio.methods import DEFAULT_OBJECTIVE
from studio.recipe.dotted_keys import flatten
from studio.redaction import redact
from studio.services.runs import continuation, runs
from studio.services.workers import workers
from studio.services.workers.workers import WorkerExit
from studio.web.auth import template_permissions
from studio.web.i18n import formatting, locale, translation
from studio.web.rendering import (
    colours,
    live_figures,
    navigation,
    static_files,
    wide_punctuation,
)
from studio.web.rendering.turn_pieces import split_at_images


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    exit: WorkerExit | None = None
    """How the worker exited, if none is running."""
    problems: Sequence[str] = ()
    """What the worker cannot do at present, in sentences."""
    counts: Mapping[navigation.CountName, int] = field(default_factory=dict)
    """The numbers of runs that the menu shows."""

    @property
    def is_healthy(self) -> bool:
        return self.exit is None and not self.problems

    def count(self, name: navigation.CountName) -> int:
        return self.counts.get(name, 0)


def worker_status(request: Request, is_error_page: bool = False) -> WorkerStatus:  # noqa: FBT001, FBT002 -- called by templates
    """Return the status of the worker; a busy database must not prevent a page from rendering."""
    if is_error_page:
        return WorkerStatus()
    if not hasattr(request.state, "worker_status"):
        request.state.worker_status = _read_worker_status(request)
    status: WorkerStatus = request.state.worker_status
    return status


def _read_worker_status(request: Request) -> WorkerStatus:
    try:
        with read_session(request.app.state.engine) as db:
            numbers = runs.count_unfinished(db)
            return WorkerStatus(
                exit=workers.last_exit(db),
                problems=workers.list_failures(db),
                counts={"running": numbers.running, "waiting": numbers.waiting},
            )
    except StudioError:
        return WorkerStatus()


VARY_HEADERS = {"Vary": "HX-Request, Accept-Language, Cookie"}
"""The request headers that a page's content depends on."""


def page(request: Request, template: str, /, *, status: int = 200, **context: Any) -> HTMLResponse:  # noqa: ANN401 -- any template variable
    html = _environment().get_template(template).render(request=request, **context)
    html = wide_punctuation.remove_spaces(html)
    return HTMLResponse(html, status, headers=VARY_HEADERS)


def block(
    request: Request,
    template: str,
    name: str,
    /,
    *,
    status: int = 200,
    **context: Any,  # noqa: ANN401 -- any template variable
) -> HTMLResponse:
    html = render_block(_environment(), template, name, request=request, **context)
    html = wide_punctuation.remove_spaces(html)
    return HTMLResponse(html, status, headers=VARY_HEADERS)


def refused_form(request: Request, template: str, /, **context: Any) -> HTMLResponse:  # noqa: ANN401 -- see `page`
    """Show a rejected form: in place for htmx, otherwise as a whole page."""
    if wants_fragment(request):
        return block(request, template, "form", status=422, **context)
    return page(request, template, status=422, **context)


def redirect(request: Request, url: str) -> Response:
    """Redirect the browser. Htmx would follow a 303 itself and swap the new page into the old."""
    if wants_fragment(request):
        return Response(status_code=204, headers={"HX-Redirect": url})
    return RedirectResponse(url, status_code=303)


def render_document(template: str, /, **context: Any) -> str:  # noqa: ANN401 -- see `page`
    """Render a file that leaves the studio: secrets in its values are redacted."""
    text = _document_environment().get_template(template).render(**context)
    return wide_punctuation.remove_spaces(text)


def plain_file_name(text: str) -> str:
    """Return a text as a part of file names that are valid on every system; maybe nothing."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:60].strip("-")


def attachment_response(content: str | bytes | Iterator[str], name: str, kind: str) -> Response:
    """Send a file to download; parts of a text are sent as they come."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    if isinstance(content, Iterator):
        return StreamingResponse(content, media_type=kind, headers=headers)
    return Response(content, media_type=kind, headers=headers)


def referring_page(request: Request, default: str) -> str:
    """Return the page that sent the request, if it is one of ours, as a path with its query."""
    referrer = urlsplit(request.headers.get("referer", ""))
    if referrer.netloc != request.headers.get("host"):
        return default
    return "/" + referrer.path.lstrip("/") + (f"?{referrer.query}" if referrer.query else "")


def wants_fragment(request: Request) -> bool:
    """Whether htmx requests a part of a page; a boosted link requests the whole page."""
    return request.headers.get("HX-Request-Type") == "partial"


def cache_compiled_templates(folder: Path) -> None:
    """Cache compiled templates in a folder: saves 0.125 s on the first page after each start."""
    folder.mkdir(parents=True, exist_ok=True)
    _environment().bytecode_cache = TemplateCache(str(folder))


class TemplateCache(FileSystemBytecodeCache):
    """Compiled templates in a folder; errors such as a full disk are ignored."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(resources.templates_dir()),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=wide_punctuation.mark_end,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    jinja.policies["ext.i18n.trimmed"] = True
    # The extension adds this method without a type.
    jinja.install_gettext_callables(locale.gettext, locale.ngettext, newstyle=True)  # type: ignore[attr-defined] # untyped upstream
    filters = formatting.FILTERS | {
        "hue": colours.run_hue,
        "segments": split_segments,
        "cell_text": to_text,
        "dotted": flatten,
        "pieces": split_at_images,
        "translated": translation.translate_value,
        "marks": find_marks,
    }
    jinja.filters.update({name: _at_rendering(one) for name, one in filters.items()})
    jinja.globals.update(
        static=static_url,
        now=lambda: datetime.now(UTC),
        menu=navigation.NAV_GROUPS,
        dock=navigation.DOCK_ITEMS,
        may=template_permissions.may,
        figure=live_figures.figure,
        continue_url=continuation.start_url,
        tiles=live_figures.tiles,
        table_metric=DEFAULT_OBJECTIVE,
        worker_status=worker_status,
        current_language=locale.current_language,
        phrases=locale.script_translations,
        languages=locale.LANGUAGES,
    )
    return jinja


def _at_rendering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep Jinja from applying a filter to a constant when it compiles: the language would stay."""

    @pass_context
    def apply(_context: Context, *values: Any, **options: Any) -> Any:  # noqa: ANN401 -- any filter's
        return function(*values, **options)

    return apply


@lru_cache(maxsize=1)
def _document_environment() -> Environment:
    # Compiled templates differ from those of pages, so they must not share a cache.
    return _environment().overlay(finalize=_redact, bytecode_cache=None)


def _redact(value: object) -> object:
    if isinstance(value, Markup):
        value = Markup(redact(str(value)))  # noqa: S704 -- it was safe, and a mask is  # nosec B704
    elif isinstance(value, str):
        value = redact(value)
    return wide_punctuation.mark_end(value)


@lru_cache(maxsize=256)
def static_url(name: str) -> str:
    """Return the URL of a static file; it contains a content hash, so it can be cached forever."""
    content = (
        static_files.bundle_content()
        if name == static_files.BUNDLE_NAME
        else static_files.shared_folder().content(name)
    )
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"
