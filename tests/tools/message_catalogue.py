"""Messages of the interface, found in templates and modules; and the catalogues with them.

`python -m tests.tools.message_catalogue` (`make words`) adds new messages to each catalogue,
without a translation, and removes those that are no longer used. A contract test fails until all
are translated.
"""

from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from tests.tools import message_extraction

ROOT = Path(__file__).parents[2]
LOCALE = ROOT / "studio" / "locale"
TEMPLATES = sorted(
    path for path in (ROOT / "templates").rglob("*.html") if path.parent.name != "style"
)
"""All pages; the style guide is for developers, in English."""

_OPTIONS = {
    "newstyle_gettext": "true",
    "trimmed": "true",
    "trim_blocks": "true",
    "lstrip_blocks": "true",
    "silent": "false",
}
_HEADER = "# What the interface says. English is the key; `make words` keeps the keys.\n#"


def extract_messages() -> Catalog:
    """Return all messages with the files that contain them, without translations."""
    found = Catalog(charset="utf-8")
    for where, message in (*_in_templates(), *message_extraction.find_messages(ROOT)):
        found.add(message, locations=[(where, 0)])
    return found


def load_catalogue(language: str) -> Catalog:
    with _path(language).open("rb") as file:
        return read_po(file, locale=language)


def translated_languages() -> list[str]:
    return sorted(path.name for path in LOCALE.iterdir() if path.is_dir())


def update(language: str) -> None:
    """Write the catalogue again: with all messages that are used, and no others."""
    known, fresh = load_catalogue(language), extract_messages()
    held = Catalog(
        locale=language,
        header_comment=_HEADER,
        creation_date=known.creation_date,
        charset="utf-8",
        fuzzy=False,
    )
    for message in sorted((one for one in fresh if one.id), key=lambda one: str(one.id)):
        before = known.get(message.id)
        held.add(
            message.id,
            before.string if before else None,
            locations=sorted({(where, 0) for where, _line in message.locations}),
        )
    with _path(language).open("wb") as file:
        write_po(file, held, width=100, include_lineno=False, omit_header=False)


def _path(language: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / "studio.po"


def _in_templates() -> Iterator[tuple[str, str | tuple[str, ...]]]:
    for path in TEMPLATES:
        where = path.relative_to(ROOT).as_posix()
        for _line, message, _comments, _context in extract_from_file(
            "jinja2.ext:babel_extract", path, options=_OPTIONS
        ):
            yield where, message


if __name__ == "__main__":
    for each in translated_languages():
        update(each)
