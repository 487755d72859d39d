"""What is seen of a file before it is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.file_preview import PreviewedRow, preview_rows
from studio.intake.files.limits import Limits
from studio.intake.mapping import Condition, Mapping, Split

PAIR = Mapping(shape="prompt_completion", roles={"prompt": ["q"], "completion": ["a"]})


def see(folder: Path, mapping: Mapping, *rows: dict[str, Any] | str) -> list[PreviewedRow]:
    path = folder / "rows.jsonl"
    written = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(written))
    return preview_rows(SourceFile(path=path, filename=path.name), mapping, Limits(), rows=4)


def test_preview_shows_source_values_and_converted_row(tmp_path: Path) -> None:
    (seen,) = see(tmp_path, PAIR, {"q": 1, "a": "b" * 400, "tags": ["x", None], "note": None})

    assert seen == PreviewedRow(
        number=1,
        place="1",
        values={"q": "1", "a": "b" * 300 + "…", "tags": '["x", null]', "note": ""},
        row={
            "messages": [
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "b" * 400},
            ]
        },
        problem=None,
        part="train",
    )


def test_preview_gives_reason_for_each_excluded_row(tmp_path: Path) -> None:
    mapping = PAIR.model_copy(
        update={
            "keep": [Condition(column="q", op="is_not", value="no")],
            "deduplicate": "exact",
        }
    )
    kept = {"q": "a", "a": "b"}

    seen = see(tmp_path, mapping, kept, {"q": "no", "a": "b"}, {"q": "c"}, kept, kept)

    assert [one.problem for one in seen] == [
        None,
        "Excluded by a filter.",
        "The answer is missing or empty.",
        "Duplicate of an earlier row.",
    ]


def test_preview_shows_unreadable_lines(tmp_path: Path) -> None:
    seen = see(tmp_path, PAIR, {"q": "a", "a": "b"}, "{oops")

    assert (seen[1].number, seen[1].values, seen[1].row) == (2, {}, None)
    assert str(seen[1].problem).startswith("Not valid JSON (Expecting property name")


def test_preview_shows_split_of_each_row(tmp_path: Path) -> None:
    mapping = PAIR.model_copy(update={"split": Split(kind="column", column="part")})
    rows = [{"q": "a", "a": "b", "part": part} for part in ("train", "test", "other")]

    assert [one.part for one in see(tmp_path, mapping, *rows)] == ["train", "validation", None]


def test_preview_shows_thread_at_its_last_row(tmp_path: Path) -> None:
    mapping = Mapping(
        shape="thread", roles={"id": ["i"], "parent": ["p"], "prompt": ["q"], "answer": ["a"]}
    )
    rows: list[dict[str, Any]] = [
        {"i": 1, "p": None, "q": "a", "a": "b"},
        {"i": 2, "p": 1, "q": "c", "a": "d"},
    ]

    first, last = see(tmp_path, mapping, *rows)

    assert first.problem == "It is part of a conversation that ends in a later row."
    row: Any = last.row
    assert [turn["content"] for turn in row["messages"]] == ["a", "b", "c", "d"]


def test_mapping_without_answer_column_is_rejected(tmp_path: Path) -> None:
    mapping = PAIR.model_copy(update={"roles": {"prompt": ["q"]}})

    with pytest.raises(InvalidError) as refused:
        see(tmp_path, mapping, {"q": "a"})

    assert refused.value.param == "roles.completion"
