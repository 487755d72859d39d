"""Find rows in another language than most, where both are written in the same script.

The main language is detected from a sample. Each row is then screened, cheaply, by the most common
words of that language; the few rows with hardly any of them are identified sentence by sentence. A
row is reported only if no sentence of it could be in the main language, so translation exercises
are not.
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

from studio.intake.files.limits import exempt_from_deadlines
from studio.intake.quality.row_checks import main_script, row_texts

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

Row = Mapping[str, Any]

LANGUAGE_NAMES = {
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
"""Names of the languages that are reported; rows in any other are left alone.

Chinese and Japanese have no spaces between words, so their rows cannot be screened cheaply.
"""

_MERGED_LANGUAGES = {
    **dict.fromkeys(("bs", "sr"), "hr"),
    **dict.fromkeys(("arz", "ary"), "ar"),
    "ms": "id",
    "nn": "no",
    "pcm": "en",
    "uzs": "uz",
}
"""Languages too close to another to be distinguished by a few sentences."""

_NO_LANGUAGE = "zxx"
"""The model's code for text in no language."""

_SAMPLE_ROWS = 500
"""Rows sampled to detect the main language."""
_MIN_SAMPLE = 20
"""Sampled rows that must be identified before any row is reported."""
_MAIN_SHARE = 0.8
"""The share of identified rows that makes a language the main one."""
_MIN_PROBABILITY = 0.9
"""Minimum probability of an identification, from 0 to 1."""
_MIN_LETTERS = 60
"""Rows with fewer letters are not identified."""
_IDENTIFIED_CHARS = 300
"""Characters of a row used for identification."""
_COMMON_WORDS = 80
"""Common words used to screen rows."""
_COMMON_WORD_SHARE = 0.15
"""The share of common words from which a row is in the main language. Typical shares: English about
0.4, Finnish 0.2."""
_SCREENED_BYTES = 400
"""Bytes of a row that are screened."""
_END_CHARS = 2000
"""Characters at either end of a text whose sentences are checked one by one."""
_MIN_SENTENCE_LETTERS = 12
"""Shorter sentences could be in any language."""

_NON_PROSE_CHARS = r"[\d_/\\{}\[\]=|$@]"
_NON_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|<[^<>\n]{1,200}>"
    # Matches from the start of a word and never backtracks, or long words would take quadratic
    # time.
    rf"|(?<![!-~])(?:(?!{_NON_PROSE_CHARS})[!-~])*+{_NON_PROSE_CHARS}[!-~]*",
    re.DOTALL,
)
"""Code, markup, addresses and numbers."""
_CODE_MARKS = re.compile(r"[{}\[\]()=<>_;#/\\*|@+$]")
_CODE_SHARE = 0.03
"""From this share of such characters, a row is code; comments in code are mostly English."""
_SENTENCE_END = re.compile("[\n\t.!?:;\u3002\uff01\uff1f\uff1a\uff1b]+")
_DECODER = json.JSONDecoder()


class RowSample:
    """A sample of a part's rows that does not depend on their order."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, str]] = []
        """The rows with the lowest hashes; negated, so that the highest comes first in the heap."""

    def add(self, line: bytes, row: Row) -> None:
        key = -crc32(line)
        if len(self._kept) < _SAMPLE_ROWS:
            heappush(self._kept, (key, _prose_text(row)[:_IDENTIFIED_CHARS]))
        elif key > self._kept[0][0]:
            heappushpop(self._kept, (key, _prose_text(row)[:_IDENTIFIED_CHARS]))

    def __iter__(self) -> Iterator[str]:
        return (text for _mark, text in sorted(self._kept))


def find_other_languages(
    path: Path, sample: Iterable[str], script: str, limit: int
) -> tuple[str, int, list[int]]:
    """Find rows of a file in another language than most, ignoring rows in other scripts.

    Return a message, their number, and the numbers of the first `most`.
    """
    main, common_words = _main_language(sample)
    counts: Counter[str] = Counter()
    rows: list[int] = []
    for number, language in _find_strays(path, main, common_words, script) if main else ():
        counts[language] += 1
        if len(rows) < limit:
            rows.append(number)
    return _describe(counts, main) if counts else "", counts.total(), rows


def _main_language(sample: Iterable[str]) -> tuple[str, frozenset[bytes]]:
    """Return the main language and its common words, or empty values if there is none."""
    long = [text for text in sample if _is_long(text)]
    if len(long) < _MIN_SAMPLE:
        return "", frozenset()
    identified = [(text, _identify(text)) for text in long]
    counts = Counter(language for _text, language in identified if language)
    main = max(counts, key=counts.__getitem__, default="")
    if (
        counts.total() < _MIN_SAMPLE
        or counts[main] < _MAIN_SHARE * counts.total()
        or main not in LANGUAGE_NAMES
    ):
        return "", frozenset()
    return main, _most_common_words(text for text, language in identified if language == main)


def _describe(counts: Mapping[str, int], main: str) -> str:
    language, usual = (
        LANGUAGE_NAMES[max(sorted(counts), key=counts.__getitem__)],
        LANGUAGE_NAMES[main],
    )
    if len(counts) > 1:
        return f"Some rows seem to be in {language} or other languages; the others are in {usual}"
    return f"Some rows seem to be in {language}; the others are in {usual}"


def _find_strays(
    path: Path, main: str, common_words: frozenset[bytes], script: str
) -> Iterator[tuple[int, str]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            words = line[:_SCREENED_BYTES].lower().split()
            if sum(map(common_words.__contains__, words)) >= _COMMON_WORD_SHARE * len(words):
                continue
            row = _DECODER.raw_decode(line.decode())[0]
            if main_script(row) != script:
                continue
            language = _row_language(row, main)
            if language in LANGUAGE_NAMES and language != main:
                yield number, language


def _row_language(row: Row, main: str) -> str:
    """Return a row's language; "" if uncertain, or if a sentence may be in `main`."""
    text = _prose_text(row)
    if not _is_long(text) or _is_code(row):
        return ""
    language = _identify(text[:_IDENTIFIED_CHARS])
    if language in {"", main} or any(
        _is_most_likely(sentence, main) for sentence in _sentences(row)
    ):
        return ""
    return language


def _is_code(row: Row) -> bool:
    text = "".join(part[:_END_CHARS] for part in row_texts(row))
    return len(_CODE_MARKS.findall(text)) > _CODE_SHARE * len(text)


def _sentences(row: Row) -> Iterator[str]:
    for text in row_texts(row):
        ends = text if len(text) <= 2 * _END_CHARS else f"{text[:_END_CHARS]}\n{text[-_END_CHARS:]}"
        yield from (
            sentence
            for sentence in _SENTENCE_END.split(_strip_non_prose(ends))
            if _count_letters(sentence) >= _MIN_SENTENCE_LETTERS
        )


def _is_most_likely(sentence: str, main: str) -> bool:
    return _most_likely(sentence)[0] == main


def _identify(text: str) -> str:
    language, probability = _most_likely(text)
    return language if probability >= _MIN_PROBABILITY and language != _NO_LANGUAGE else ""


def _most_likely(text: str) -> tuple[str, float]:
    shares: Counter[str] = Counter()
    for language, share in _load_identifier().rank(text):
        shares[_MERGED_LANGUAGES.get(language, language)] += share
    return max(shares.items(), key=itemgetter(1))


@lru_cache(maxsize=1)
def _load_identifier() -> "LanguageIdentifier":
    """Load the model once, when first needed: it takes most of a second and 75 MB."""
    with exempt_from_deadlines():
        from py3langid import langid  # noqa: PLC0415 -- heavy import

        return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _most_common_words(texts: Iterable[str]) -> frozenset[bytes]:
    """Return the words of two letters or more that occur in most texts."""
    counts: Counter[bytes] = Counter()
    for text in texts:
        words = text.encode(errors="replace").lower().split()
        counts.update({word for word in words if len(word) > 1})
    # Break ties independently of the order of the rows.
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return frozenset(ordered[:_COMMON_WORDS])


def _prose_text(row: Row) -> str:
    return "\n".join(_strip_non_prose(text[: 4 * _IDENTIFIED_CHARS]) for text in row_texts(row))


def _strip_non_prose(text: str) -> str:
    return _NON_PROSE.sub(" ", text)


def _is_long(text: str) -> bool:
    return _count_letters(text) >= _MIN_LETTERS


def _count_letters(text: str) -> int:
    return sum(map(str.isalpha, text))
