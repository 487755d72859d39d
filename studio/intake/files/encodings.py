"""Detect the encoding of a text, and read it as UTF-8.

Byte order marks, NUL bytes and valid UTF-8 are certain. Other encodings must be guessed, by two
detectors: over 138 samples in 46 languages and encodings, chardet was right in 132 and
charset-normalizer in 94; where both agreed, they were right in 93 of 94. So chardet ranks the
encodings, and a guess is only likely if charset-normalizer agrees. A guess is never certain.
"""

import codecs
import io
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from studio.intake.files.archives import CHUNK_BYTES, chunks_as_file
from studio.intake.files.formats import UTF8_BOM
from studio.intake.files.packages import load_encoding_detectors

UTF8 = "utf-8"

ENCODINGS: dict[str, str] = {
    "utf-8": "UTF-8",
    "gb18030": "Chinese, simplified (GB18030, GBK)",
    "cp950": "Chinese, traditional (Big5)",
    "big5hkscs": "Chinese, Hong Kong (Big5-HKSCS)",
    "cp932": "Japanese (Shift-JIS)",
    "euc_jp": "Japanese (EUC-JP)",
    "iso2022_jp": "Japanese (ISO-2022-JP)",
    "cp949": "Korean (EUC-KR, CP949)",
    "cp1250": "Central European (Windows-1250)",
    "cp1251": "Cyrillic (Windows-1251)",
    "cp1252": "Western European (Windows-1252)",
    "cp1253": "Greek (Windows-1253)",
    "cp1254": "Turkish (Windows-1254)",
    "cp1255": "Hebrew (Windows-1255)",
    "cp1256": "Arabic (Windows-1256)",
    "cp1257": "Baltic (Windows-1257)",
    "cp1258": "Vietnamese (Windows-1258)",
    "cp874": "Thai (Windows-874)",
    "koi8-r": "Russian (KOI8-R)",
    "koi8-u": "Ukrainian (KOI8-U)",
    "iso8859-1": "Western European (ISO-8859-1)",
    "iso8859-2": "Central European (ISO-8859-2)",
    "iso8859-3": "South European (ISO-8859-3)",
    "iso8859-4": "North European (ISO-8859-4)",
    "iso8859-5": "Cyrillic (ISO-8859-5)",
    "iso8859-6": "Arabic (ISO-8859-6)",
    "iso8859-7": "Greek (ISO-8859-7)",
    "iso8859-8": "Hebrew (ISO-8859-8)",
    "iso8859-9": "Turkish (ISO-8859-9)",
    "iso8859-10": "Nordic (ISO-8859-10)",
    "iso8859-13": "Baltic (ISO-8859-13)",
    "iso8859-14": "Celtic (ISO-8859-14)",
    "iso8859-15": "Western European (ISO-8859-15)",
    "iso8859-16": "Romanian (ISO-8859-16)",
    "mac-roman": "Western European (MacRoman)",
    "mac-latin2": "Central European (MacLatin2)",
    "mac-cyrillic": "Cyrillic (MacCyrillic)",
    "mac-greek": "Greek (MacGreek)",
    "mac-turkish": "Turkish (MacTurkish)",
    "cp437": "DOS (CP437)",
    "cp850": "DOS, Western European (CP850)",
    "cp852": "DOS, Central European (CP852)",
    "cp866": "DOS, Cyrillic (CP866)",
    "utf-16-le": "UTF-16, little endian",
    "utf-16-be": "UTF-16, big endian",
    "utf-32-le": "UTF-32, little endian",
    "utf-32-be": "UTF-32, big endian",
}
"""Supported encodings: Python's name, and a label for users."""

_SUPERSETS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "cp950",
    "shift_jis": "cp932",
    "shift_jis_2004": "cp932",
    "euc_kr": "cp949",
    "johab": "cp949",
    "tis-620": "cp874",
    "iso8859-11": "cp874",
    "ascii": UTF8,
    "utf-8-sig": UTF8,
    "utf-16": "utf-16-le",
    "utf-32": "utf-32-le",
}
"""Encodings replaced by a superset, which also reads what current programs add to them."""

_BYTE_ORDER_MARKS: tuple[tuple[bytes, str], ...] = (
    (UTF8_BOM, UTF8),
    # Before UTF-16, because its mark starts with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE_ENCODINGS = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
CERTAIN_ENCODINGS = frozenset({UTF8, *_WIDE_ENCODINGS})
"""Encodings that can be detected with certainty."""
_MIN_PRINTABLE_SHARE = 0.95
"""Minimum share of printable characters in a text; other bytes read as UTF-16 have less."""
_ISO_2022_ESCAPE = re.compile(rb"\x1b(?:\$[@B]|\([IJ])")
"""The escape that starts non-ASCII text in ISO-2022-JP, which has only 7-bit bytes."""
_SAFE_CUTS = (b"\n", b"\r", b" ", b'"')
"""Bytes that are never part of another character in these encodings, so the text can be cut
there."""
_MAX_CUT_BYTES = 3
"""Bytes of a character that may be missing at the end of a sample."""
_SCAN_BYTES = 16 * 2**20
"""Bytes searched for non-ASCII text; the rest is assumed to be UTF-8."""
_SAMPLE_BYTES = 2**15
_PREVIEW_CHARS = 160
"""Characters of a sample shown to the user."""
_MAX_PREVIEWS = 5
_SPARSE_RUNS = 4
_TYPOGRAPHIC_MARKS = "‘’“”„‚«»–—…•€£§°´¿¡©®™\xa0"  # noqa: RUF001 -- typographic marks
"""Typographic characters that occur among Latin letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingPreview:
    """A text sample read in an encoding."""

    encoding: str
    label: str
    sample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingGuess:
    """The detected encoding of a text."""

    encoding: str
    is_guessed: bool = False
    """Whether it is a guess and not certain."""
    is_likely: bool = True
    readings: list[EncodingPreview] = field(default_factory=list)
    """For a guess: a sample in it, and in the next candidates."""


def normalise_encoding(name: str) -> str:
    """Return Python's name of an encoding with many spellings; "" stays "".

    Raises:
        LookupError: it is unknown, or not supported here.

    """
    if not name.strip():
        return ""
    canonical = codecs.lookup(name.strip()).name
    canonical = _SUPERSETS.get(canonical, canonical)
    if canonical not in ENCODINGS:
        raise LookupError(name)
    return canonical


def detect_certain(head: bytes) -> str:
    """Return the encoding that the first bytes show with certainty, or ""."""
    name = next((name for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), "")
    return name or _detect_wide(head)


def guess_encoding(file: io.BufferedReader) -> EncodingGuess:
    """Guess the encoding of a text, reading it from the start."""
    head = file.peek(CHUNK_BYTES)[:CHUNK_BYTES]
    certain = detect_certain(head)
    if certain:
        return EncodingGuess(encoding=certain)
    sample = _non_ascii_sample(file)
    if _is_utf8(sample):
        return EncodingGuess(encoding=UTF8)
    return _guess_from_sample(sample)


def preview_encodings(file: io.BufferedReader, chosen: str) -> list[EncodingPreview]:
    """Return samples of a text in a chosen encoding, then in likely ones."""
    sample = file.read(_SAMPLE_BYTES) if chosen in _WIDE_ENCODINGS else _non_ascii_sample(file)
    if not sample:
        return []
    others = [] if chosen in _WIDE_ENCODINGS or _is_utf8(sample) else _rank_encodings(sample)
    return [preview_encoding(name, sample) for name in dict.fromkeys([chosen, *others])][
        :_MAX_PREVIEWS
    ]


def as_utf8(file: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return a text as UTF-8 without a byte order mark. Invalid bytes stay invalid UTF-8."""
    start = file.peek(4)[:4]
    mark = next(
        (
            mark
            for mark, encoding in _BYTE_ORDER_MARKS
            if encoding == name and start.startswith(mark)
        ),
        b"",
    )
    file.read(len(mark))
    return file if name == UTF8 else chunks_as_file(_recode(file, name))


def normalise_newlines(file: io.BufferedReader, head: bytes) -> io.BufferedReader:
    """Convert the line endings of classic Mac OS (CR), to LF."""
    beginning = head_as_utf8(head)
    # The last byte may be the first half of CRLF.
    if b"\n" in beginning or b"\r" not in beginning[:-1]:
        return file
    pieces = iter(partial(file.read, CHUNK_BYTES), b"")
    return chunks_as_file(piece.replace(b"\r", b"\n") for piece in pieces)


def head_as_utf8(head: bytes) -> bytes:
    """Return the head of a file as UTF-8 if it is UTF-16 or UTF-32, else unchanged."""
    name = detect_certain(head)
    if name in {"", UTF8}:
        return head
    text = head.decode(name, "replace")
    return text.removeprefix("\ufeff").encode("utf-8", "replace")


def _detect_wide(head: bytes) -> str:
    """Return which of UTF-16 and UTF-32 a text without a mark is in, or ""."""
    if b"\0" not in head:
        return ""
    texts = {name: text for name in _WIDE_ENCODINGS if (text := _decode_wide(head, name))}
    # With swapped bytes, Latin letters become Chinese ones; every text has some ASCII.
    best = max(texts, key=lambda name: sum(letter < "\x80" for letter in texts[name]), default="")
    return best if any(letter < "\x80" for letter in texts.get(best, "")) else ""


def _decode_wide(head: bytes, name: str) -> str:
    try:
        text = codecs.getincrementaldecoder(name)().decode(head)
    except UnicodeDecodeError:
        return ""
    printed = sum(letter.isprintable() or letter in "\r\n\t" for letter in text)
    return text if printed >= _MIN_PRINTABLE_SHARE * len(text) else ""


def _non_ascii_sample(file: io.BufferedReader) -> bytes:
    """Return the first lines, or parts of lines, that are not ASCII."""
    sample, rest, scanned = bytearray(), b"", 0
    while (
        scanned < _SCAN_BYTES and len(sample) < _SAMPLE_BYTES and (block := file.read(CHUNK_BYTES))
    ):
        scanned += len(block)
        piece = rest + block
        # The last piece may end in the middle of a character.
        cut = max(piece.rfind(mark) for mark in _SAFE_CUTS) + 1 or len(piece)
        rest = piece[cut:]
        sample += _non_ascii_lines(piece[:cut])
    return bytes(sample + _non_ascii_lines(rest))


def _non_ascii_lines(piece: bytes) -> bytes:
    if piece.isascii() and not _ISO_2022_ESCAPE.search(piece):
        return b""
    lines = re.split(rb"(?<=[\r\n])", piece)
    return b"".join(line for line in lines if not line.isascii() or _ISO_2022_ESCAPE.search(line))


def _is_utf8(sample: bytes) -> bool:
    """Tell whether a sample is UTF-8; a few invalid bytes among many characters are allowed."""
    if _ISO_2022_ESCAPE.search(sample) and sample.isascii():
        return False
    text = sample.decode("utf-8", "surrogateescape")
    bad = sum("\udc80" <= letter <= "\udcff" for letter in text)
    cut = sum("\udc80" <= letter <= "\udcff" for letter in text[-_MAX_CUT_BYTES:])
    good = sum(letter > "\x7f" for letter in text) - bad
    # A character cut at the end of the sample is fine; but three bytes may be all a file has.
    return bad - (cut if len(sample) >= _SAMPLE_BYTES else 0) <= good


def _guess_from_sample(sample: bytes) -> EncodingGuess:
    names = _rank_encodings(sample)
    texts = {name: sample.decode(name, "replace") for name in names}
    best = names[0]
    others = [name for name in names[1:] if texts[name] != texts[best]]
    return EncodingGuess(
        encoding=best,
        is_guessed=True,
        is_likely=not _is_sparse(sample) and _charset_normalizer_text(sample) == texts[best],
        readings=[preview_encoding(name, sample) for name in [best, *others][:_MAX_PREVIEWS]],
    )


def preview_encoding(name: str, sample: bytes) -> EncodingPreview:
    """Return the start of a sample in an encoding."""
    text = " ".join(sample.decode(name, "replace").split())
    first = next((i for i, letter in enumerate(text) if letter > "\x7f"), 0)
    start = max(0, first - _PREVIEW_CHARS // 4)
    return EncodingPreview(
        encoding=name, label=ENCODINGS[name], sample=text[start : start + _PREVIEW_CHARS]
    )


def _rank_encodings(sample: bytes) -> list[str]:
    """Return the possible encodings of a sample, likeliest first; at least one."""
    load_encoding_detectors()
    import chardet  # noqa: PLC0415 -- heavy import

    names: dict[str, None] = {}
    for guess in chardet.detect_all(sample, ignore_threshold=True):
        try:
            name = normalise_encoding(guess["encoding"] or "")
        except LookupError:
            continue
        # Bytes 80 to 9F, undefined in ISO-8859-1, are quotes and dashes in Windows-1252.
        names[{"iso8859-1": "cp1252", "": "cp1252"}.get(name, name)] = None
    names.pop(UTF8, None)
    valid = [name for name in names if _decodes(sample, name)] or list(names) or ["cp1252"]
    texts = [sample.decode(name, "replace") for name in ("cp1252", valid[0])]
    if _is_sparse(sample) and (_is_latin(texts[0]) or not _is_latin(texts[1])):
        return list(dict.fromkeys(["cp1252", *valid]))
    return valid


def _is_sparse(sample: bytes) -> bool:
    """Tell whether there is too little non-ASCII for statistics: single letters, as in café."""
    runs = re.findall(rb"[\x80-\xff]+", sample)
    return 0 < len(runs) <= _SPARSE_RUNS and all(len(run) == 1 for run in runs)


def _is_latin(text: str) -> bool:
    """Tell whether all non-ASCII characters are Latin letters or typographic characters."""
    beyond = (letter for letter in text if letter > "\x7f" and letter not in _TYPOGRAPHIC_MARKS)
    return all(unicodedata.name(letter, "").startswith("LATIN") for letter in beyond)


def _decodes(sample: bytes, name: str) -> bool:
    try:
        sample.decode(name)
    except UnicodeDecodeError:
        return False
    return True


def _charset_normalizer_text(sample: bytes) -> str:
    """Return the text as charset-normalizer would read it."""
    load_encoding_detectors()
    import charset_normalizer  # noqa: PLC0415 -- heavy import

    best = charset_normalizer.from_bytes(sample).best()
    return "" if best is None else sample.decode(best.encoding, "replace")


def _recode(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    # Both handlers pass on invalid bytes as lone surrogates: that row is left out later.
    errors = "surrogatepass" if name in _WIDE_ENCODINGS else "surrogateescape"
    decoder = codecs.getincrementaldecoder(name)(errors)
    while block := file.read(CHUNK_BYTES):
        yield decoder.decode(block).encode("utf-8", "surrogatepass")
    yield _flush_decoder(decoder)


def _flush_decoder(decoder: codecs.IncrementalDecoder) -> bytes:
    """Return the rest of the text, or an invalid byte if the file ends within a character."""
    try:
        return decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return b"\xff"
