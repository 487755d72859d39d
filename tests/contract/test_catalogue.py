"""Every word of the interface is said in every language, and nothing is left over."""

import re
from pathlib import Path

import pytest
from babel.messages.catalog import Message

from tests.tools import message_catalogue, untranslated_text

HOLES = re.compile(r"%\((\w+)\)s|\{(\w+)(?::\w+)?\}")
SPACE_AFTER_WIDE = re.compile(r"[\u3002\uff0c\uff1a\uff01\uff1f\uff1b]\s")
WANTED = {message.id for message in message_catalogue.extract_messages() if message.id}


@pytest.fixture(params=message_catalogue.translated_languages())
def kept(request: pytest.FixtureRequest) -> dict[object, Message]:
    return {
        message.id: message
        for message in message_catalogue.load_catalogue(request.param)
        if message.id
    }


def test_every_interface_text_is_in_catalogue(kept: dict[object, Message]) -> None:
    assert [said for said in WANTED if said not in kept] == [], "Run `make words`, and translate."


def test_catalogue_has_no_unused_messages(kept: dict[object, Message]) -> None:
    assert [said for said in kept if said not in WANTED] == [], "Run `make words`."


def test_every_catalogue_message_is_translated(kept: dict[object, Message]) -> None:
    assert [one.id for one in kept.values() if not all(_texts(one.string)) or one.fuzzy] == []


def test_translations_keep_placeholders_of_source(kept: dict[object, Message]) -> None:
    wrong = [
        one.id
        for one in kept.values()
        if any(_holes(text) - _holes("".join(_texts(one.id))) for text in _texts(one.string))
        or any(_holes(_texts(one.id)[-1]) - _holes(text) for text in _texts(one.string))
    ]

    assert wrong == []


def test_no_space_follows_wide_punctuation(kept: dict[object, Message]) -> None:
    """Wide punctuation has room in itself; a line break is shown as a space."""
    assert [
        one.id for one in kept.values() if any(map(SPACE_AFTER_WIDE.search, _texts(one.string)))
    ] == []


@pytest.mark.parametrize("path", message_catalogue.TEMPLATES, ids=lambda path: path.name)
def test_templates_contain_no_untranslated_text(path: Path) -> None:
    assert untranslated_text.untranslated_texts(path) == [], (
        "Write it as {{ _(…) }} or {% trans %}, then `make words`."
    )


def test_macro_files_translate_nothing_outside_macros() -> None:
    """What stands beside macros is rendered once, in the language of whoever came first."""
    assert [
        path.name for path in message_catalogue.TEMPLATES if untranslated_text.is_early(path)
    ] == []


def _texts(said: object) -> list[str]:
    return [str(one) for one in said] if isinstance(said, tuple | list) else [str(said or "")]


def _holes(text: str) -> set[str]:
    return {one or other for one, other in HOLES.findall(text)}
