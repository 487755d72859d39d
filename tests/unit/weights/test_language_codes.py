"""Which languages a translating model has, and what a recipe may name."""

import json
from pathlib import Path

import pytest

from studio.weights import language_codes
from studio.weights.language_codes import Languages

FRENCH = Languages("en_XX", "fr_XX")
CODES = ("ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "fr_XX", "zh_CN")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": ["<mask>", "fr_XX", "en_XX"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"4": {"content": "fr_XX"}, "5": {}}}),
        ("special_tokens_map.json", {"additional_special_tokens": ["fr_XX", {"content": "en_XX"}]}),
        ("tokenizer.json", {"added_tokens": [{"content": "fr_XX"}, {"content": "<s>"}]}),
    ],
)
def test_codes_are_found_in_each_layout(name: str, content: object, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))

    assert "fr_XX" in language_codes.read(tmp_path)
    assert set(language_codes.read(tmp_path)) <= {"fr_XX", "en_XX"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"added_tokens": 3}', '{"added_tokens": [[1]]}'])
def test_unreadable_files_have_no_codes(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)

    assert language_codes.read(tmp_path) == ()


@pytest.mark.parametrize(
    ("family", "languages", "codes", "message", "hint"),
    [
        ("mbart", FRENCH, CODES, "", ""),
        ("mbart", FRENCH, (), "", ""),
        ("t5", None, (), "", ""),
        ("t5", FRENCH, (), "t5 models have no codes of languages.", "Leave both languages empty."),
        (
            "mbart",
            None,
            CODES,
            "mbart models need a source and a target language.",
            "It has 7 languages, such as de_DE, en_XX, es_XX, fr_XX, zh_CN.",
        ),
        (
            "m2m_100",
            Languages("en_XX", "nl_XX"),
            CODES,
            "This model has no language nl_XX.",
            "It has 7 languages, such as de_DE, en_XX, es_XX, fr_XX, zh_CN.",
        ),
        ("mbart", None, (), "mbart models need a source and a target language.", "Set both"),
    ],
)
def test_problem_names_languages_that_exist(
    family: str, languages: Languages | None, codes: tuple[str, ...], message: str, hint: str
) -> None:
    problem = language_codes.find_problem(family, languages, codes)

    assert (problem.message if problem else "") == message
    assert (problem.hint if problem else "").startswith(hint)
