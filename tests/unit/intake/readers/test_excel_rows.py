"""Rows of Excel workbooks: which sheet, which names, and what is damaged or means harm."""

import gzip
import io
import re
import zipfile
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError, TooLargeError
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.conversion.job import ConversionJob, check_in_child
from studio.intake.detection.row_shapes import DetectedMapping
from studio.intake.files.limits import Limits, SlowReadingError
from studio.intake.mapping import FileOptions
from studio.intake.raw_rows import RawRow
from studio.intake.readers import file_reader
from tests.support.excel_files import Table, excel_file
from tests.unit.intake.conftest import Convert, zipped

NAMES = ("Ticket Text", "What we said", "Agent #")
TICKETS: Table = [NAMES, ("Where is it?", "On its way.", 3), ("A refund, please.", "Done.", 4)]
MOMENT = datetime(2026, 5, 4, 12, 30)  # noqa: DTZ001 -- Excel knows no zones
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def files_in(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed(content: bytes, member: str, pattern: str, new: str) -> bytes:
    """Return a workbook of which one file is written otherwise."""
    files = files_in(content)
    text, count = re.subn(pattern, new, files[member].decode(), count=1)
    assert count
    return zipped(files | {member: text.encode()})


def shared(texts: Sequence[str]) -> bytes:
    """Return a workbook whose one column refers to texts as Excel keeps them: in a list."""
    rows = "".join(f'<row><c t="s"><v>{i}</v></c></row>' for i in range(len(texts)))
    items = "".join(f"<si>{text}</si>" for text in texts)
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    told = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    content = changed(excel_file({"Sheet1": []}), "[Content_Types].xml", "</Types>", told)
    filled = f"<sheetData>{rows}</sheetData>"
    content = changed(content, "xl/worksheets/sheet1.xml", "<sheetData.*(/>|</sheetData>)", filled)
    table = f'<sst xmlns="{MAIN}">{items}</sst>'
    return zipped(files_in(content) | {"xl/sharedStrings.xml": table.encode()})


def kept(folder: Path, content: bytes, filename: str = "rows.xlsx") -> SourceFile:
    path = folder / "uploaded"
    path.write_bytes(content)
    return SourceFile(path=path, filename=filename)


def read(folder: Path, content: bytes, **options: Any) -> list[tuple[int, dict[str, Any]]]:  # noqa: ANN401 -- of `FileOptions`
    found = file_reader.read_rows(
        kept(folder, content).path, "xlsx", Limits(), options=FileOptions(**options)
    )
    return [(row.number, row.values) for row in found if isinstance(row, RawRow)]


def seen_in(folder: Path, content: bytes, filename: str = "rows.xlsx") -> DetectedMapping:
    return inspect_file(kept(folder, content, filename), Limits()).detected


@pytest.mark.parametrize("filename", ["a.xlsx", "A.XLSX", "a.xlsm"])
def test_workbook_rows_become_conversations(bring: Convert, filename: str) -> None:
    result = bring(excel_file({"Sheet1": TICKETS}), filename)

    assert [[turn["content"] for turn in turns] for turns in result.conversations] == [
        ["Where is it?", "On its way."],
        ["A refund, please.", "Done."],
    ]


@pytest.mark.parametrize(
    ("filename", "pack"),
    [("a.xlsx.gz", gzip.compress), ("a.zip", lambda content: zipped({"a.xlsx": content}))],
)
def test_compressed_workbook_is_read(bring: Convert, filename: str, pack: Any) -> None:  # noqa: ANN401 -- bytes to bytes
    assert len(bring(pack(excel_file({"Sheet1": TICKETS})), filename).rows) == 2


def test_each_cell_type_is_read_as_its_value(tmp_path: Path) -> None:
    row = ["Grüße, 你好", 3, 2.5, True, date(2026, 5, 4), MOMENT, "a_x000D_b"]
    content = excel_file({"Sheet1": [list("abcdefg"), row]})

    assert read(tmp_path, content)[0][1] == dict(zip("abcdefg", [*row[:6], "a\rb"], strict=True))


def test_shared_and_rich_strings_are_read(tmp_path: Path) -> None:
    rich = "<r><t>A </t></r><r><rPr><b/></rPr><t>refund</t></r><rPh sb='0' eb='1'><t>x</t></rPh>"

    found = read(tmp_path, shared(["<t>a</t>", rich, "<t xml:space='preserve'> 你好</t>"]))

    assert found == [(2, {"a": "A refund"}), (3, {"a": " 你好"})]


def test_duration_becomes_text_and_error_cell_becomes_empty(tmp_path: Path) -> None:
    content = excel_file({"Sheet1": [["a", "b"], [timedelta(hours=30), "#N/A"]]})

    assert read(tmp_path, content) == [(2, {"a": "1 day, 6:00:00", "b": None})]


def test_formula_cell_gives_saved_result(tmp_path: Path) -> None:
    content = excel_file({"Sheet1": [["a"], ["=1+1"]]})
    saved = changed(
        content, "xl/worksheets/sheet1.xml", r"<f>1\+1</f><v>?</?v ?/?>", "<f>1+1</f><v>2</v>"
    )

    assert read(tmp_path, saved) == [(2, {"a": 2})]


def test_first_sheet_is_used_and_others_are_offered(tmp_path: Path) -> None:
    seen = seen_in(tmp_path, excel_file({"Tickets": TICKETS, "Prices": [["a"], ["b"]]}))

    assert (seen.sheets, seen.mapping.file.sheet) == (["Tickets", "Prices"], "Tickets")
    assert seen.questions[0] == "Sheet Tickets is used. Is that right? Others: Prices."


def test_single_sheet_workbook_raises_no_questions(tmp_path: Path) -> None:
    seen = seen_in(tmp_path, excel_file({"Sheet1": [("prompt", "completion"), *TICKETS[1:]]}))

    assert (seen.questions, seen.mapping.file) == ([], FileOptions())


def test_sheet_is_read_by_name(tmp_path: Path) -> None:
    content = excel_file({"Tickets": TICKETS, "Prices": [["Item"], ["Tea"]]})

    assert read(tmp_path, content, sheet="Prices") == [(2, {"Item": "Tea"})]


def test_missing_sheet_error_lists_available_sheets(tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as refused:
        read(tmp_path, excel_file({"Tickets": TICKETS, "Prices": []}), sheet="Costs")

    assert refused.value.message == "Sheet not found: Costs. Available sheets: Tickets, Prices."
    assert refused.value.param == "sheet"


def test_empty_and_hidden_sheets_are_skipped(tmp_path: Path) -> None:
    sheets = {"Cover": [], "Lists": [["x"], ["y"]], "Tickets": TICKETS}

    seen = seen_in(tmp_path, excel_file(sheets, hidden="Lists"))

    assert (seen.sheets, seen.mapping.file.sheet) == (["Cover", "Tickets"], "Tickets")


def test_title_above_table_is_skipped_with_question(tmp_path: Path) -> None:
    content = excel_file({"Sheet1": [["Tickets of May"], [], *TICKETS]})

    assert [number for number, _ in read(tmp_path, content)] == [4, 5]
    assert list(read(tmp_path, content)[0][1]) == list(NAMES)
    assert (
        "Everything above row 3 is skipped. Is that right?" in seen_in(tmp_path, content).questions
    )


def test_sheet_without_header_keeps_first_row(bring: Convert) -> None:
    assert len(bring(excel_file({"Sheet1": TICKETS[1:]}), "a.xlsx").rows) == 2


def test_cells_beyond_header_get_their_own_columns(tmp_path: Path) -> None:
    content = excel_file({"Sheet1": [["a", "column 3"], [1], [1, 2, 3, 4]]})

    assert read(tmp_path, content) == [
        (2, {"a": 1, "column 3": None}),
        (3, {"a": 1, "column 3": 2, "column 3 2": 3, "column 4": 4}),
    ]


def test_excess_columns_and_out_of_range_cells_are_rejected(tmp_path: Path) -> None:
    wide = excel_file({"Sheet1": [[*range(1001)], [1]]})
    content = excel_file({"Sheet1": [["a"], ["b"]]})
    far = changed(content, "xl/worksheets/sheet1.xml", 'r="A2"', 'r="XFD1048576"')
    beyond = changed(content, "xl/worksheets/sheet1.xml", '<row r="2"', '<row r="99999999999"')

    for one, message in ((wide, "1,001 columns"), (far, "16,384 columns"), (beyond, "damaged")):
        with pytest.raises((InvalidError, TooLargeError), match=message):
            read(tmp_path, one)


@pytest.mark.parametrize("cut", [0.3, 0.7, 0.99])
def test_truncated_workbook_is_rejected(bring: Convert, cut: float) -> None:
    content = excel_file({"Sheet1": TICKETS})

    with pytest.raises(InvalidError) as refused:
        bring(content[: int(cut * len(content))], "a.xlsx")

    assert refused.value.param == "file"


@pytest.mark.parametrize(
    ("member", "pattern", "new"),
    [
        ("xl/worksheets/sheet1.xml", "</sheetData>", ""),
        ("xl/worksheets/sheet1.xml", "<v>3</v>", "<v>three</v>"),
        ("xl/worksheets/sheet1.xml", '<row r="2"', '<row r="1"'),
        ("xl/styles.xml", "<", ""),
    ],
)
def test_damaged_workbook_error_has_clear_message(
    bring: Convert, member: str, pattern: str, new: str
) -> None:
    content = changed(excel_file({"Sheet1": TICKETS}), member, pattern, new)

    with pytest.raises(InvalidError) as refused:
        bring(content, "a.xlsx")

    assert refused.value.message.startswith("The Excel workbook cannot be fully read")


def test_strict_ooxml_workbook_is_rejected_with_message(bring: Convert) -> None:
    files = files_in(excel_file({"Sheet1": TICKETS}))
    strict = b"http://purl.oclc.org/ooxml/spreadsheetml/main"

    with pytest.raises(InvalidError, match="of an unusual type"):
        bring(
            zipped({name: one.replace(MAIN.encode(), strict) for name, one in files.items()}),
            "a.xlsx",
        )


def test_missing_shared_string_is_rejected_with_message(bring: Convert) -> None:
    content = changed(shared(["<t>a</t>", "<t>b</t>"]), "xl/sharedStrings.xml", "<si>", "<x>")

    with pytest.raises(InvalidError, match="cannot be fully read"):
        bring(content, "a.xlsx")


def test_workbook_with_only_header_is_rejected(bring: Convert) -> None:
    with pytest.raises(InvalidError, match="no rows"):
        bring(excel_file({"Sheet1": [NAMES]}), "a.xlsx")


def test_workbook_unpacking_too_large_is_rejected(bring: Convert) -> None:
    filler = " " * 3_000_000
    content = changed(excel_file({"Sheet1": TICKETS}), "xl/worksheets/sheet1.xml", "$", filler)

    assert len(content) < 20_000
    with pytest.raises(TooLargeError, match="unpacks to more than"):
        bring(content, "a.xlsx", free_bytes=2_000_000, total_bytes=2_500_000)


def test_row_with_too_many_cells_hits_time_limit(tmp_path: Path) -> None:
    cells = "<c/>" * 5_000_000
    content = changed(excel_file({"Sheet1": TICKETS}), "xl/worksheets/sheet1.xml", "</row>", cells)
    path = kept(tmp_path, content).path

    with pytest.raises(SlowReadingError):
        list(file_reader.read_rows(path, "xlsx", Limits().within(0.05)))


def test_slow_workbook_check_raises_slow_reading_error(tmp_path: Path) -> None:
    source = kept(tmp_path, excel_file({"Sheet1": TICKETS}))

    with pytest.raises(SlowReadingError):
        check_in_child(ConversionJob(source=source, mapping=None, limits=Limits(at_once_seconds=0)))
