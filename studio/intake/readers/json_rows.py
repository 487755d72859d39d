"""Read rows of JSON: one per line, or in a list, which is split without loading it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any, BinaryIO, NoReturn

from studio.intake.files.formats import JSON_LIST_START
from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RawRow, RowStream, UnreadableRow
from studio.intake.readers.text_rows import not_utf8_row, read_lines, too_long_error, too_long_row

_CHUNK_BYTES = 2**20
_HEAD_BYTES = 2**16
_UNCLOSED_HINT = "A quote or bracket there may be unclosed."
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{},]', re.DOTALL)
"""A complete string, or punctuation outside strings; a lone quote opens a string that continues."""
_STRING_END = re.compile(rb'(?:[^"\\]++|\\.)*+"', re.DOTALL)


class _InvalidValueError(ValueError):
    """Valid JSON whose value is ambiguous or cannot be stored."""

    def __init__(self, code: ProblemCode, detail: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def rows_in_json_lines(file: BinaryIO, limit: int) -> RowStream:
    for number, line in read_lines(file, limit):
        if line is None:
            yield too_long_row(number, limit)
        elif line.strip():
            yield _parse_row(number, line)


def rows_in_json_list(file: BinaryIO, limit: int, chunk: int = _CHUNK_BYTES) -> RowStream:
    """Yield the rows of a list.

    Raises:
        InvalidError: a row is too long, so that the start of the next is unknown.

    """
    for number, piece in _ListSplitter(limit).split(_read_chunks(file, chunk)):
        yield (
            UnreadableRow(number, piece)
            if isinstance(piece, ProblemCode)
            else _parse_row(number, piece)
        )


def _read_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the content of the list and what follows it, in chunks."""
    head = file.read(_HEAD_BYTES)
    start = JSON_LIST_START.match(head)
    content = head[start.end() if start else 0 :]
    yield from (content[i : i + size] for i in range(0, len(content), size))
    while block := file.read(size):
        yield block


def _parse_row(number: int, text: bytes) -> RawRow | UnreadableRow:
    try:
        values = _DECODER.decode(text.decode())
    except UnicodeDecodeError as error:
        return not_utf8_row(number, error)
    except json.JSONDecodeError as error:
        return UnreadableRow(
            number, ProblemCode.NOT_JSON, f"{error.msg}, character {error.pos + 1}"
        )
    except _InvalidValueError as error:
        return UnreadableRow(number, error.code, error.detail)
    except RecursionError:
        return UnreadableRow(number, ProblemCode.TOO_DEEP)
    except ValueError:
        return UnreadableRow(number, ProblemCode.HUGE_NUMBER)
    return (
        RawRow(number, values)
        if isinstance(values, dict)
        else UnreadableRow(number, ProblemCode.NOT_A_ROW)
    )


def _parse_finite_float(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refuse_constant(text)


def _refuse_constant(_constant: str) -> NoReturn:
    raise _InvalidValueError(ProblemCode.NOT_FINITE)


def _parse_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise an error for repeated keys, which other parsers drop silently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _value in pairs]
        raise _InvalidValueError(
            ProblemCode.REPEATED_NAME, next(x for x in names if names.count(x) > 1)[:60]
        )
    return values


# Created once: the module's functions would create one per row.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_parse_unique_keys,
    parse_float=_parse_finite_float,
    parse_constant=_refuse_constant,
)


class _ListSplitter:
    """Splits the text of a JSON list into rows by quotes, brackets and commas alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.number = 0
        self.depth = 0
        self.in_string = False
        self.ended = False
        self.kept = bytearray()
        self.rest = b""

    def split(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes | ProblemCode]]:
        """Yield each row's number, and its text or what is wrong with it."""
        backslash = b""
        for block in chunks:
            chunk = backslash + block
            # An escape is never split: its backslash waits for the next chunk.
            backslash = b"\\" if _ends_in_escape(chunk) else b""
            yield from self._cut(chunk[: len(chunk) - len(backslash)])
            if self.ended:
                break
        remainder = b"".join([self.rest, backslash, next(chunks, b"")])
        if not self.ended:
            yield self.number + 1, ProblemCode.CUT_OFF
        elif remainder.lstrip().startswith((b"[", b"{")):
            # Only another list or row is a loss; the object around the list may have more keys.
            yield self.number + 1, ProblemCode.AFTER_END

    def _cut(self, chunk: bytes) -> Iterator[tuple[int, bytes | ProblemCode]]:
        start = 0
        for token, position in self._marks(chunk):
            if token in b"[{":
                self.depth += 1
            elif token in b"]}" and self.depth:
                self.depth -= 1
            elif self.depth == 0:
                yield from self._close(chunk[start:position], token)
                start = position + 1
                if token != b",":
                    self.ended, self.rest = True, chunk[start:]
                    return
        self._keep(chunk[start:])

    def _marks(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        start = 0
        if self.in_string:
            end = _STRING_END.match(chunk)
            if end is None:
                return
            self.in_string, start = False, end.end()
        for match in _TOKEN.finditer(chunk, start):
            token = match.group()
            if token == b'"':
                self.in_string = True
                return
            if len(token) == 1:
                yield token, match.start()

    def _keep(self, piece: bytes) -> None:
        self.kept += piece
        if len(self.kept) > self.limit:
            raise too_long_error(f"Row {self.number + 1}", self.limit, _UNCLOSED_HINT)

    def _close(self, piece: bytes, token: bytes) -> Iterator[tuple[int, bytes]]:
        self._keep(piece)
        row = bytes(self.kept).strip()
        self.kept.clear()
        # An empty item between two commas is an error; before the end, it is a trailing comma.
        if row or token == b",":
            self.number += 1
            yield self.number, row


def _ends_in_escape(chunk: bytes) -> bool:
    return (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 == 1


def flatten_articles(rows: RowStream) -> RowStream:
    """Yield each question of an article as a row, and all other rows as they are.

    Rows are renumbered from the first article on, because one article holds many.
    """
    number = 0
    for row in rows:
        if isinstance(row, RawRow) and _is_article(row.values):
            for values in _questions(row.values):
                number += 1
                yield replace(row, number=number, values=values)
        elif isinstance(row, FileNote) or not number:
            yield row
        else:
            number += 1
            yield replace(row, number=number)


def _is_article(values: dict[str, Any]) -> bool:
    match values.get("paragraphs"):
        case [{"context": str(), "qas": list()}, *_]:
            return True
    return False


def _questions(article: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for paragraph in article["paragraphs"]:
        match paragraph:
            case {"context": context, "qas": [*questions]}:
                title = {"title": article["title"]} if "title" in article else {}
                for question in questions:
                    values = question if isinstance(question, dict) else {"question": question}
                    yield (
                        title | {"context": context} | values | _answer_spans(values.get("answers"))
                    )


def _answer_spans(answers: Any) -> dict[str, Any]:  # noqa: ANN401 -- from a user's file
    """Return the answers to a question in the format of SQuAD on Hugging Face."""
    match answers:
        case [*spans] if all(isinstance(span, dict) for span in spans):
            names = ("text", "answer_start")
            return {"answers": {name: [span.get(name) for span in spans] for name in names}}
    return {}
