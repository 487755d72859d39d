"""Which rows are in another language than the others, where both are written in one script.

What most rows are in is told from a sample. Then each row is screened by the words that are common
in it, which is cheap; the few rows that have hardly any are told sentence by sentence. A row is
named only if no sentence of it could be in the language of the others: an exercise in translation
is not.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import heappush, heappushpop
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from studio.intake.files.limits import charged_to_no_file
from studio.intake.quality.row_checks import script, texts

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

Row = Mapping[str, Any]

NAMES = {
    "af": "Afrikaans",
    "az": "Azerbaijani",
    "bg": "Bulgarian",
    "ca": "Catalan",
    "cs": "Czech",
    "cy": "Welsh",
    "da": "Danish",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "ga": "Irish",
    "hi": "Hindi",
    "hr": "Croatian or Serbian",
    "hu": "Hungarian",
    "id": "Indonesian or Malay",
    "is": "Icelandic",
    "it": "Italian",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mr": "Marathi",
    "ne": "Nepali",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sq": "Albanian",
    "sv": "Swedish",
    "sw": "Swahili",
    "tl": "Filipino",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "uz": "Uzbek",
    "vi": "Vietnamese",
    "ar": "Arabic",
}
"""The languages that are told, in words; rows that look like any other are left alone.

Chinese and Japanese have no spaces between words, so nothing cheap could screen their rows.
"""

_AS_ONE = {
    **dict.fromkeys(("bs", "sr"), "hr"),
    **dict.fromkeys(("arz", "ary"), "ar"),
    "ms": "id",
    "nn": "no",
    "pcm": "en",
    "uzs": "uz",
}
"""Languages too near to others to be told from them by a few sentences."""

_NONE = "zxx"
"""What the model calls that which is in no language."""

_SAMPLE = 500
"""Rows from which the language of most is told."""
_ENOUGH = 20
"""Of them, those that must be told for any to be the odd one out."""
_MAIN = 0.8
"""The share of them from which a language is the data set's own."""
_SURE = 0.9
"""How sure the model must be of a row, from nothing to one."""
_LETTERS = 60
"""Letters below which a row is not told."""
_GLANCE = 300
"""Characters of a row that tell its language."""
_COMMON = 80
"""Words by which the rows of a language are known."""
_SHARE = 0.15
"""The share of such words in a row that is plainly in that language: in English about 0.4, in
Finnish 0.2."""
_BYTES = 400
"""Of a row, those that are screened."""
_ENDS = 2000
"""Characters at either end of a text whose sentences are looked at one by one."""
_SENTENCE = 12
"""Letters below which a sentence could be in any language."""

_ODD = r"[\d_/\\{}\[\]=|$@]"
_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|<[^<>\n]{1,200}>"
    # Begins where a word does and never goes back, or long words would take their length squared.
    rf"|(?<![!-~])(?:(?!{_ODD})[!-~])*+{_ODD}[!-~]*",
    re.DOTALL,
)
"""Code, marks, addresses and numbers."""
_MARKS = re.compile(r"[{}\[\]()=<>_;#/\\*|@+$]")
_CODE = 0.03
"""The share of such marks from which a row is no prose; comments in code are mostly English."""
_END = re.compile("[\n\t.!?:;\u3002\uff01\uff1f\uff1a\uff1b]+")
_READER = json.JSONDecoder()


class Sample:
    """Some rows of a part: the same whatever order they come in."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, str]] = []
        """The lowest hashes and their texts; negative, so that the highest is the first."""

    def add(self, line: bytes, row: Row) -> None:
        mark = -crc32(line)
        if len(self._kept) < _SAMPLE:
            heappush(self._kept, (mark, _prose(row)[:_GLANCE]))
        elif mark > self._kept[0][0]:
            heappushpop(self._kept, (mark, _prose(row)[:_GLANCE]))

    def __iter__(self) -> Iterator[str]:
        return (text for _mark, text in sorted(self._kept))


def foreign(
    path: Path, sample: Iterable[str], wanted: str, most: int
) -> tuple[str, int, list[int]]:
    """Find rows of a file in another language than most. Of those in another script, none.

    Return a sentence on them, how many they are, and the numbers of the first `most`.
    """
    main, usual = _main(sample)
    counts: Counter[str] = Counter()
    rows: list[int] = []
    for number, language in _strays(path, main, usual, wanted) if main else ():
        counts[language] += 1
        if len(rows) < most:
            rows.append(number)
    return _sentence(counts, main) if counts else "", counts.total(), rows


def _main(sample: Iterable[str]) -> tuple[str, frozenset[bytes]]:
    """Return the language of most rows, and its common words. Nothing: none is that of most."""
    long = [text for text in sample if _is_long(text)]
    if len(long) < _ENOUGH:
        return "", frozenset()
    told = [(text, _language(text)) for text in long]
    counts = Counter(language for _text, language in told if language)
    main = max(counts, key=counts.__getitem__, default="")
    if counts.total() < _ENOUGH or counts[main] < _MAIN * counts.total() or main not in NAMES:
        return "", frozenset()
    return main, _common(text for text, language in told if language == main)


def _sentence(counts: Mapping[str, int], main: str) -> str:
    language, usual = NAMES[max(sorted(counts), key=counts.__getitem__)], NAMES[main]
    if len(counts) > 1:
        return f"Rows seem to be in {language} or other languages, the others in {usual}"
    return f"Rows seem to be in {language}, the others in {usual}"


def _strays(
    path: Path, main: str, usual: frozenset[bytes], wanted: str
) -> Iterator[tuple[int, str]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            words = line[:_BYTES].lower().split()
            if sum(map(usual.__contains__, words)) >= _SHARE * len(words):
                continue
            row = _READER.raw_decode(line.decode())[0]
            if script(row) != wanted:
                continue
            language = _of_row(row, main)
            if language in NAMES and language != main:
                yield number, language


def _of_row(row: Row, main: str) -> str:
    """Return what a row is in; nothing where that is not sure, or a sentence may be in `main`."""
    text = _prose(row)
    if not _is_long(text) or _is_code(row):
        return ""
    language = _language(text[:_GLANCE])
    if language in {"", main} or any(_may_be(one, main) for one in _sentences(row)):
        return ""
    return language


def _is_code(row: Row) -> bool:
    text = "".join(one[:_ENDS] for one in texts(row))
    return len(_MARKS.findall(text)) > _CODE * len(text)


def _sentences(row: Row) -> Iterator[str]:
    for text in texts(row):
        ends = text if len(text) <= 2 * _ENDS else f"{text[:_ENDS]}\n{text[-_ENDS:]}"
        yield from (one for one in _END.split(_bare(ends)) if _letters(one) >= _SENTENCE)


def _may_be(sentence: str, main: str) -> bool:
    return _guess(sentence)[0] == main


def _language(text: str) -> str:
    found, sure = _guess(text)
    return found if sure >= _SURE and found != _NONE else ""


def _guess(text: str) -> tuple[str, float]:
    shares: Counter[str] = Counter()
    for language, share in _model().rank(text):
        shares[_AS_ONE.get(language, language)] += share
    return max(shares.items(), key=itemgetter(1))


@lru_cache(maxsize=1)
def _model() -> "LanguageIdentifier":
    """Load the model, which takes most of a second and 75 MB: once, and no sooner than needed."""
    with charged_to_no_file():
        from py3langid import langid  # noqa: PLC0415 -- heavy import

        return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _common(found: Iterable[str]) -> frozenset[bytes]:
    """Return the words of more than a letter that stand in most texts."""
    counts: Counter[bytes] = Counter()
    for text in found:
        words = text.encode(errors="replace").lower().split()
        counts.update({word for word in words if len(word) > 1})
    # Those that are equally common in an order that does not depend on the rows'.
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return frozenset(ordered[:_COMMON])


def _prose(row: Row) -> str:
    return "\n".join(_bare(text[: 4 * _GLANCE]) for text in texts(row))


def _bare(text: str) -> str:
    return _NO_PROSE.sub(" ", text)


def _is_long(text: str) -> bool:
    return _letters(text) >= _LETTERS


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))
