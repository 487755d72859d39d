"""Texts in the encodings people have, and bytes that are no text."""

import codecs
import io

import pytest

from studio.intake.encodings import Encoding, as_utf8, encoding
from studio.intake.json_rows import rows_on_lines
from studio.intake.problems import Code
from studio.intake.rows import Unread
from tests.unit.intake.conftest import Bring

GOOD = b'{"prompt": "a", "completion": "b"}\n'
EXCEL = "prompt,completion\nQu\xe9?,Voil\xe0 \x85\n"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"plain", "utf-8"),
        ("é".encode(), "utf-8"),
        (codecs.BOM_UTF8 + b"a", "utf-8"),
        ("a".encode("utf-16"), "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        ("café, thé".encode("cp1252"), "cp1252"),
        ("é".encode("cp1252"), "cp1252"),
        ("ééé".encode() + b"\xe9", "utf-8"),
        (b"\x81 is no character of Windows \xe9", "utf-8"),
        (("x" * 65535 + "é").encode()[:65536], "utf-8"),
    ],
)
def test_an_encoding_is_told_by_the_beginning(head: bytes, name: str) -> None:
    assert encoding(head, windows=True) == name


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
def test_utf16_is_read_with_pairs_of_surrogates(name: Encoding) -> None:
    text = "\ufeffa 😀\n" * 50_000

    read = as_utf8(io.BufferedReader(io.BytesIO(text.encode(name))), name).read()

    assert read == text[1:].encode()


def test_a_table_of_excel_is_read_as_windows_text_and_told(bring: Bring) -> None:
    result = bring(EXCEL.encode("latin-1"), "rows.csv")

    assert [turn["content"] for turn in result.conversations[0]] == ["Qué?", "Voilà …"]
    assert result.problems == [("read_as_windows", 0, [])]


@pytest.mark.parametrize(
    ("filename", "content", "number"),
    [
        ("rows.jsonl", GOOD + GOOD.replace(b"a", b"\xe9", 1) + GOOD, 2),
        ("rows.csv", "prompt,completion\nü,é\n".encode() + b"\xe9,b\n" + b"a,b\n", 3),
        ("rows.csv", 'prompt,completion\nü,é\n"one\n'.encode() + b'\xe9",b\n' + b"a,b\n", 3),
        ("rows.jsonl", codecs.BOM_UTF16_LE + (GOOD * 2).decode().encode("utf-16-le") + b"{", 3),
    ],
)
def test_a_row_that_is_no_text_is_left_out_and_told(
    bring: Bring, filename: str, content: bytes, number: int
) -> None:
    result = bring(content, filename)

    assert (result.converted.rows, result.problems) == (2, [("not_utf8", 1, [number])])


def test_the_place_of_the_byte_is_told() -> None:
    assert list(rows_on_lines(io.BytesIO(b'\n{"a": "\xff"}\n'), 100)) == [
        Unread(2, Code.NOT_UTF8, "byte 0xff at position 8")
    ]
