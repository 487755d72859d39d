"""A file is told by its bytes, and refused in words when its name says something else."""

import pytest

from studio.errors import InvalidError
from tests.unit.intake.conftest import Bring

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100
ZIP = "a zip archive, or a document of Word or Excel"
ROW = '{"prompt": "a", "completion": "é"}\n'


@pytest.mark.parametrize(
    ("filename", "content", "message"),
    [
        ("a.jsonl", b"", "The file is empty."),
        ("a.json", b"\xef\xbb\xbf \n", "The file is empty."),
        ("a.parquet", b"", "The file is empty."),
        ("a.jsonl", b"PAR1abc", "The name ends in .jsonl, but the file is a Parquet file."),
        ("a.json", b"<!DOCTYPE html>", "The name ends in .json, but the file is an HTML page."),
        ("a.csv", PNG, "The name ends in .csv, but the file is a PNG image."),
        ("a.csv", ROW.encode(), "The name ends in .csv, but the file is JSON."),
        ("a.parquet", ROW.encode(), "The name ends in .parquet, but the file is JSON."),
        ("a.jsonl", b"a,b\n", "The name ends in .jsonl, but the file is text that is not JSON."),
        ("a.csv", b"\x1f\x8b\x08", "The name ends in .csv, but the file is a gzip archive."),
        (
            "a.json",
            b"PK\x03\x04",
            f"The name ends in .json, but the file is {ZIP}.",
        ),
        (
            "a.jsonl",
            ROW.encode("utf-16"),
            "The name ends in .jsonl, but the file is text in UTF-16.",
        ),
        ("a.txt", b"Once upon a time", "This is running text, without questions and answers."),
        (
            "a.xlsx",
            b"PK\x03\x04",
            f"The studio does not read a file ending in .xlsx; it seems to be {ZIP}.",
        ),
        (
            "rows",
            ROW.encode(),
            "The studio does not read a file whose name has no ending; it seems to be JSON.",
        ),
        (
            "a.jsonl",
            ROW.encode() + ROW.encode("latin-1"),
            "The file is not UTF-8 text: line 2 holds the byte 0xe9.",
        ),
        (
            "a.csv",
            "prompt,completion\na,é\n".encode("latin-1"),
            "The file is not UTF-8 text: line 2 holds the byte 0xe9.",
        ),
        (
            "a.parquet",
            b"PAR1" + b"x" * 100 + b"PAR1",
            "The Parquet file is damaged and cannot be read to its end.",
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_what_it_is(
    bring: Bring, filename: str, content: bytes, message: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(content, filename)

    assert (refused.value.message, refused.value.param) == (message, "file")


@pytest.mark.parametrize(
    ("filename", "content"),
    [
        ("bom.jsonl", b"\xef\xbb\xbf" + ROW.encode()),
        ("bom.json", b"\xef\xbb\xbf[" + ROW.encode() + b"]"),
        ("bom.csv", b"\xef\xbb\xbfprompt,completion\na,\xc3\xa9\n"),
        ("crlf.jsonl", ROW.replace("\n", "\r\n").encode()),
        ("crlf.csv", b"prompt,completion\r\na,\xc3\xa9\r\n"),
        ("SHOUTED.JSONL", ROW.encode()),
        ("spaced.json", b"\n\n  [" + ROW.encode() + b"]\n"),
        ("first_line_broken.jsonl", b"oops\n" + ROW.encode()),
    ],
)
def test_harmless_differences_are_read(bring: Bring, filename: str, content: bytes) -> None:
    assert bring(content, filename).conversations == [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "é"}]
    ]
