"""A file is told by its bytes, and refused in words when its name says something else."""

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.errors import InvalidError
from studio.intake.files.format_detection import detect_format
from tests.unit.intake.conftest import Convert, zipped

ROW = '{"prompt": "a", "completion": "é"}\n'
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def in_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table({"prompt": ["a"]}), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("filename", "content", "message"),
    [
        ("a.jsonl", b"", "The file is empty."),
        ("a.json", b"\xef\xbb\xbf \n", "The file is empty."),
        ("a.parquet", b"", "The file is empty."),
        (
            "a.jsonl",
            b"PAR1abc",
            "The file has the extension .jsonl, but its content is a Parquet file.",
        ),
        (
            "a.json",
            b"<!DOCTYPE html>",
            "The file has the extension .json, but its content is an HTML page.",
        ),
        ("a.csv", PNG, "The file has the extension .csv, but its content is a PNG image."),
        ("a.csv", ROW.encode(), "The file has the extension .csv, but its content is JSON."),
        (
            "a.parquet",
            ROW.encode(),
            "The file has the extension .parquet, but its content is JSON.",
        ),
        (
            "a.jsonl",
            b"a,b\n",
            "The file has the extension .jsonl, but its content is not JSON rows.",
        ),
        (
            "a.csv",
            b"\x1f\x8b\x08",
            "The file has the extension .csv, but its content is a gzip archive.",
        ),
        (
            "a.json",
            b"PK\x03\x04",
            "The file has the extension .json, but its content is a zip archive.",
        ),
        ("a.jsonl.gz", ROW.encode(), "The file has the extension .gz, but its content is JSON."),
        (
            "a.csv.gz",
            gzipped(PNG),
            "The file has the extension .csv, but its content is a PNG image.",
        ),
        ("a.jsonl.gz", gzipped(b""), "The file is empty."),
        (
            "a.csv.zst",
            gzipped(b"a,b\n"),
            "The file has the extension .zst, but its content is a gzip archive.",
        ),
        ("a.txt", ROW.encode(), "The file has the extension .txt, but its content is JSON."),
        (
            "a.md",
            b"<!DOCTYPE html>",
            "The file has the extension .md, but its content is an HTML page.",
        ),
        (
            "a.csv",
            b"\x80\x04.",
            "The file has the extension .csv, but its content is a Python pickle.",
        ),
        ("a.arrow", ROW.encode(), "The file has the extension .arrow, but its content is JSON."),
        (
            "a.gz",
            gzipped(b"a,b\n"),
            "Mantissa Studio does not support files without an extension; this seems to be text.",
        ),
        (
            "a.xlsx",
            zipped({"[Content_Types].xml": b"x", "xl/workbook.xml": b"x"}),
            "The Excel workbook cannot be fully read: it is damaged, or of an unusual type.",
        ),
        (
            "a.xlsx",
            zipped({"a.csv": b"x"}),
            "The file has the extension .xlsx, but its content is a zip archive.",
        ),
        ("a.xlsx", b"a,b\n", "The file has the extension .xlsx, but its content is text."),
        (
            "a.csv",
            zipped({"[Content_Types].xml": b"x", "xl/workbook.xml": b"x"}),
            "The file has the extension .csv, but its content is an Excel workbook.",
        ),
        (
            "a.docx",
            zipped({"[Content_Types].xml": b"x", "word/document.xml": b"x"}),
            (
                "Mantissa Studio does not support files with the extension .docx; this seems to be "
                "a Word document."
            ),
        ),
        (
            "a.pt",
            zipped({"a/data.pkl": b"x"}),
            (
                "Mantissa Studio does not support files with the extension .pt; this seems to be "
                "a PyTorch file."
            ),
        ),
        (
            "rows",
            ROW.encode(),
            "Mantissa Studio does not support files without an extension; this seems to be JSON.",
        ),
        (
            "a.parquet",
            b"PAR1" + b"x" * 100 + b"PAR1",
            "The Parquet file is damaged and cannot be fully read.",
        ),
        (
            "a.parquet",
            in_parquet().replace(b"prompt", b"prom\xff\xff"),
            "The Parquet file is damaged and cannot be fully read.",
        ),
    ],
)
def test_unusable_file_error_names_actual_content(
    bring: Convert, filename: str, content: bytes, message: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(content, filename)

    assert (refused.value.message, refused.value.param) == (message, "file")


@pytest.mark.parametrize(
    ("filename", "content", "hint"),
    [
        ("a.jsonl", gzipped(b"{}"), "Add .gz after the extension of its content"),
        (
            "a.csv",
            zipped({"xl/a": b"", "[Content_Types].xml": b""}),
            "Change the extension to .xlsx.",
        ),
        ("a.pkl", b"\x80\x04.", "Opening a pickle can run arbitrary code."),
        ("a.png", PNG, "Supported formats: JSON Lines, JSON, CSV, TSV, Excel (.xlsx),"),
    ],
)
def test_unusable_file_error_has_hint(
    bring: Convert, filename: str, content: bytes, hint: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(content, filename)

    assert refused.value.hint.startswith(hint)


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
        ("utf16.jsonl", ROW.encode("utf-16")),
        ("utf16.csv", b"\xfe\xff" + "prompt,completion\na,é\n".encode("utf-16-be")),
        ("windows.csv", "prompt,completion\na,é\n".encode("cp1252")),
        ("packed.gz", gzipped(ROW.encode())),
        ("first_line_broken.jsonl", b"oops\n" + ROW.encode()),
    ],
)
def test_harmless_file_format_differences_are_accepted(
    bring: Convert, filename: str, content: bytes
) -> None:
    assert bring(content, filename).conversations == [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "é"}]
    ]


TAGGED = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n\nParis\tB-LOC\n"


@pytest.mark.parametrize(
    ("filename", "content", "expected"),
    [
        ("a.tsv", TAGGED, "text"),
        ("a.csv", TAGGED.replace("\t", " "), "text"),
        ("a.tsv", "-DOCSTART-\tO\n\n" + TAGGED, "text"),
        ("a.tsv", TAGGED.replace("\n", "\r\n"), "text"),
        ("a.tsv", TAGGED.replace("\n\n", "\n"), "csv"),
        ("a.tsv", "word\ttag\n" + TAGGED, "csv"),
        ("a.csv", "prompt,completion\na,b\n\nc,d\n", "csv"),
        ("a.csv", "", ""),
    ],
    ids=["tabs", "spaces", "documents", "Windows", "no blank lines", "header", "table", "empty"],
)
def test_words_with_tags_on_lines_are_no_table(
    tmp_path: Path, filename: str, content: str, expected: str
) -> None:
    path = tmp_path / filename
    path.write_bytes(content.encode())
    if not expected:
        with pytest.raises(InvalidError):
            detect_format(path, filename)
        return
    assert detect_format(path, filename) == expected
