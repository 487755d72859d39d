"""The languages of models that translate between several, by the codes in their tokenizers."""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MULTILINGUAL = frozenset({"mbart", "m2m_100"})
"""Families whose texts carry the code of their language: mBART, mBART-50 and NLLB, by `model_type`.
"""

_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""Such as `en_XX` in mBART and `eng_Latn` in NLLB."""
_FILES = ("tokenizer_config.json", "special_tokens_map.json", "tokenizer.json")
_MAX_BYTES = 64 * 2**20
_USUAL = re.compile(r"(en|eng|fr|fra|de|deu|es|spa|zh|zho)_")
"""Codes that are named first as examples."""
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Languages:
    """What a model translates from and to, by the codes in its tokenizer."""

    source: str
    target: str


def codes_among(tokens: Iterable[str]) -> tuple[str, ...]:
    """Return the special tokens that are codes of languages, sorted."""
    return tuple(sorted({token for token in tokens if _CODE.fullmatch(token)}))


def read(folder: Path) -> tuple[str, ...]:
    """Return the codes of the languages in a model's folder; none if its files do not show them."""
    for name in _FILES:
        if codes := codes_among(_special_tokens(folder / name)):
            return codes
    return ()


@dataclass(frozen=True, slots=True)
class LanguageProblem:
    """Why a model cannot translate between two languages."""

    message: str
    hint: str


def find_problem(
    family: str, languages: Languages | None, codes: Collection[str]
) -> LanguageProblem | None:
    """Return why a model cannot translate between these languages; None if it can.

    Without known codes, any are accepted.
    """
    if family not in MULTILINGUAL:
        message = f"{family} models have no codes of languages."
        return LanguageProblem(message, "Leave both languages empty.") if languages else None
    usual_first = sorted(codes, key=lambda code: (not _USUAL.match(code), code))
    listed, count = ", ".join(usual_first[:_EXAMPLES]), len(codes)
    hint = f"It has {count} languages, such as {listed}." if codes else "Set both languages."
    if languages is None:
        message = f"{family} models need a source and a target language."
        return LanguageProblem(message, hint)
    unknown = [code for code in (languages.source, languages.target) if code not in codes]
    if not unknown or not codes:
        return None
    code = unknown[0]
    return LanguageProblem(f"This model has no language {code}.", hint)


def _special_tokens(file: Path) -> Iterator[str]:
    """Yield the special tokens in one of a tokenizer's files, in any of upstream's layouts."""
    try:
        content = json.loads(file.read_bytes()) if file.stat().st_size <= _MAX_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    for name in ("added_tokens", "added_tokens_decoder", "extra_special_tokens"):
        yield from _texts(content.get(name))
    yield from _texts(content.get("additional_special_tokens"))


def _texts(entries: Any) -> Iterator[str]:  # noqa: ANN401 -- JSON
    values = entries.values() if isinstance(entries, dict) else entries
    for entry in values if isinstance(values, Iterable) else ():
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield text
