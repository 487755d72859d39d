"""Excel workbooks as people bring them."""

import io
from collections.abc import Mapping, Sequence

from openpyxl import Workbook

Table = Sequence[Sequence[object]]


def excel_file(sheets: Mapping[str, Table], hidden: str = "") -> bytes:
    book = Workbook()
    book.remove(book.worksheets[0])
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        sheet.sheet_state = "hidden" if name == hidden else "visible"
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()
