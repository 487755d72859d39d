"""How plain text and Markdown are cut into rows."""

import io

import pytest

from studio.intake.problems import ProblemCode
from studio.intake.raw_rows import FileNote, RawRow, RowStream, UnreadableRow
from studio.intake.readers.text_rows import rows_in_markdown, rows_in_text


def texts(found: RowStream) -> list[tuple[int, str]]:
    return [(row.number, row.values["text"]) for row in found if isinstance(row, RawRow)]


def in_markdown(text: str) -> list[tuple[int, str]]:
    return texts(rows_in_markdown(io.BytesIO(text.encode()), 10_000))


@pytest.mark.parametrize(
    ("text", "note", "rows"),
    [
        ("one\ntwo\n", ProblemCode.BY_LINE, [(1, "one"), (2, "two")]),
        ("\n\none\ntwo\n\n\n", ProblemCode.BY_LINE, [(3, "one"), (4, "two")]),
        ("one\ntwo\n\nthree", ProblemCode.BY_PARAGRAPH, [(1, "one\ntwo"), (4, "three")]),
        ("one\r\ntwo\r\n \t\r\nthree", ProblemCode.BY_PARAGRAPH, [(1, "one\ntwo"), (4, "three")]),
        ("\n\n\n  indented\n\nb\n", ProblemCode.BY_PARAGRAPH, [(4, "  indented"), (6, "b")]),
    ],
)
def test_text_is_split_at_blank_lines_or_else_lines(
    text: str, note: ProblemCode, rows: list[tuple[int, str]]
) -> None:
    found = list(rows_in_text(io.BytesIO(text.encode()), 10_000))

    assert found == [FileNote(note), *(RawRow(number, {"text": text}) for number, text in rows)]


def test_too_long_paragraph_is_reported_and_others_are_kept() -> None:
    text = b"one\n\n" + b"many short lines\n" * 100 + b"\n" + b"x" * 5000 + b"\n\nlast\n"

    found = list(rows_in_text(io.BytesIO(text), 1000))

    assert found == [
        FileNote(ProblemCode.BY_PARAGRAPH),
        RawRow(1, {"text": "one"}),
        UnreadableRow(3, ProblemCode.TOO_LONG, "the limit is 0.000954 MB"),
        UnreadableRow(104, ProblemCode.TOO_LONG, "the limit is 0.000954 MB"),
        RawRow(106, {"text": "last"}),
    ]


def test_undecodable_paragraph_is_reported() -> None:
    found = list(rows_in_text(io.BytesIO(b"one\n\ntw\xff\n\nthree"), 1000))

    assert found[2] == UnreadableRow(3, ProblemCode.NOT_UTF8, "byte 0xff at position 3")


def test_text_without_early_blank_line_is_split_by_line() -> None:
    text = b"x" * 600_000 + b"\n" + b"y" * 600_000 + b"\n\nlast\n"

    found = list(rows_in_text(io.BytesIO(text), 10**6))

    assert [type(one) for one in found] == [FileNote, RawRow, RawRow, RawRow]
    assert found[0] == FileNote(ProblemCode.BY_LINE)


def test_sections_start_at_first_and_second_level_headings() -> None:
    text = "before\n\n# One\na\n### Deeper\nb\n\n## Two\nc\n#no heading\n"

    assert in_markdown(text) == [
        (1, "before"),
        (3, "# One\na\n### Deeper\nb"),
        (8, "## Two\nc\n#no heading"),
    ]


@pytest.mark.parametrize("mark", ["```", "~~~~", "```python", "   ```"])
def test_comment_in_code_block_is_not_heading(mark: str) -> None:
    close = mark.strip().rstrip("python")
    text = f"# One\n{mark}\n# comment\n```x\n{close}\n# Two\na\n"

    assert [number for number, _text in in_markdown(text)] == [1, 6]


def test_code_fence_is_closed_only_by_matching_marks() -> None:
    text = "# One\n````\n```\n# a\n~~~~\n# b\n````\n# Two\nc\n"

    assert [number for number, _text in in_markdown(text)] == [1, 8]


def test_heading_without_text_joins_next_section() -> None:
    assert in_markdown("# Book\n\n## Chapter\na\n## Next\nb\n## Last") == [
        (1, "# Book\n\n## Chapter\na"),
        (5, "## Next\nb"),
        (7, "## Last"),
    ]


def test_underlined_headings_start_sections() -> None:
    text = "One\n===\na\n\nTwo\n---\nb\n\n* item\n---\nc\n\n| x |\n---\n"

    assert [number for number, _text in in_markdown(text)] == [1, 5]


def test_too_long_section_is_reported() -> None:
    found = list(rows_in_markdown(io.BytesIO(b"# One\n" + b"a\n" * 1000 + b"# Two\nb\n"), 1000))

    assert found == [
        FileNote(ProblemCode.BY_HEADING),
        UnreadableRow(1, ProblemCode.TOO_LONG, "the limit is 0.000954 MB"),
        RawRow(1002, {"text": "# Two\nb"}),
    ]
