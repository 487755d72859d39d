"""The language of each request, and its message catalogue.

Sources are written in English. Other languages are catalogues in `studio/locale`, loaded on first
use. The API and the logs are always English.
"""

import io
import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from gettext import GNUTranslations, NullTranslations
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from studio import resources
from studio.db.states import RunStatus
from studio.protocols.events import PHASES

ENGLISH = "en"
LANGUAGES: dict[str, str] = {ENGLISH: "English", "zh-Hans": "\u4e2d\u6587"}
"""The languages of pages: tag, and name in that language."""

LANGUAGE_COOKIE = "language"
"""Holds the language chosen by the user; it takes precedence over the browser's."""

PHRASE_CALL = re.compile(r'\bphrase\(\s*"([^"]+)"')
"""How scripts mark a text for translation."""

_LOCALE = Path(__file__).resolve().parents[2] / "locale"
_CHINESE = re.compile(r"zh(-(hans|cn|sg|my)(-.*)?)?", re.IGNORECASE)
_language: ContextVar[str] = ContextVar("language", default=ENGLISH)


class LocaleMiddleware:
    """Set the language of each request before it is handled."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            is_page = not scope["path"].startswith(("/api/", "/v1/"))
            set_language(choose_language(Headers(scope=scope)) if is_page else ENGLISH)
        await self.app(scope, receive, send)


def choose_language(headers: Mapping[str, str]) -> str:
    """Return the language of the response: the user's choice, or the browser's preference."""
    chosen = cookie_parser(headers.get("cookie", "")).get(LANGUAGE_COOKIE, "")
    return (
        chosen if chosen in LANGUAGES else _negotiate_language(headers.get("accept-language", ""))
    )


def set_language(tag: str) -> None:
    """Set the language for the rest of this request."""
    _language.set(tag)


def current_language() -> str:
    """Return the language tag of this request, as used in HTML."""
    return _language.get()


def babel_locale() -> str:
    """Return the language of this request as a Babel locale."""
    return current_language().replace("-", "_")


def is_english() -> bool:
    return current_language() == ENGLISH


def gettext(message: str) -> str:
    # The empty message is the header of a catalogue.
    return catalog(current_language()).gettext(message) if message else message


def ngettext(one: str, many: str, number: int) -> str:
    return catalog(current_language()).ngettext(one, many, number)


def script_translations() -> dict[str, str]:
    """Return the texts of scripts with their translations; empty for English."""
    return {} if is_english() else {text: gettext(text) for text in _script_messages()}


@lru_cache(maxsize=len(LANGUAGES))
def catalog(tag: str) -> NullTranslations:
    if tag == ENGLISH:
        return NullTranslations()
    folder = _LOCALE / tag.replace("-", "_") / "LC_MESSAGES"
    compiled = folder / "studio.mo"
    if compiled.exists():
        with compiled.open("rb") as file:
            return GNUTranslations(file)
    return GNUTranslations(io.BytesIO(_compile_catalog(folder / "studio.po")))


@lru_cache(maxsize=1)
def _script_messages() -> list[str]:
    sources = (path.read_text("utf-8") for path in (resources.static_dir() / "js").rglob("*.js"))
    messages = {text for source in sources for text in PHRASE_CALL.findall(source)}
    return sorted(messages | {state.value for state in RunStatus} | set(PHASES))


def _compile_catalog(path: Path) -> bytes:
    from babel.messages.mofile import write_mo  # noqa: PLC0415 -- heavy import
    from babel.messages.pofile import read_po  # noqa: PLC0415 -- heavy import

    with path.open("rb") as source:
        catalogue = read_po(source, locale=path.parts[-3])
    compiled = io.BytesIO()
    write_mo(compiled, catalogue)
    return compiled.getvalue()


def _negotiate_language(header: str) -> str:
    """Return the supported language that an Accept-Language header prefers."""
    preferences = sorted(
        filter(None, map(_parse_preference, header[:1000].split(","))), key=lambda one: -one[1]
    )
    return next(
        (tag for name, weight in preferences if weight and (tag := _supported_language(name))),
        ENGLISH,
    )


def _parse_preference(part: str) -> tuple[str, float] | None:
    name, _semicolon, weight = part.strip().partition(";")
    if not name:
        return None
    key, _equals, value = weight.strip().partition("=")
    try:
        return name.strip(), float(value) if key.strip() == "q" else 1.0
    except ValueError:
        return None


def _supported_language(name: str) -> str:
    if name == "*" or name.lower().split("-")[0] == ENGLISH:
        return ENGLISH
    return "zh-Hans" if _CHINESE.fullmatch(name) else ""
