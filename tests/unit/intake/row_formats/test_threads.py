"""Rows that name the row before them, joined into conversations."""

import json
from typing import Any

import pytest

from studio.errors import TooLargeError
from studio.intake.mapping import Mapping, Split
from studio.intake.raw_rows import RawRow
from studio.intake.row_formats.threads import ThreadJoiner
from tests.unit.intake.conftest import Convert

PAIRS = Mapping(
    shape="thread",
    roles={"id": ["id"], "parent": ["parent_id"], "prompt": ["prompt"], "answer": ["answer"]},
)
SPOKEN = Mapping(
    shape="thread",
    roles={"id": ["id"], "parent": ["parent_id"], "text": ["text"], "speaker": ["role"]},
)


def pair(name: str, parent: str | None, prompt: str, answer: str) -> dict[str, Any]:
    return {"id": name, "parent_id": parent, "prompt": prompt, "answer": answer}


def spoken(name: str, parent: str | None, role: str) -> dict[str, Any]:
    return {"id": name, "parent_id": parent, "role": role, "text": f"says {name}"}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def contents(conversations: list[list[Any]]) -> list[str]:
    return [" ".join(turn["content"] for turn in turns) for turns in conversations]


def test_each_root_to_leaf_path_becomes_conversation(bring: Convert) -> None:
    rows = lines(
        pair("leaf", "root", "c", "d"),
        pair("root", None, "a", "b"),
        pair("other", "root", "e", "f"),
    )

    result = bring(rows, mapping=PAIRS)

    assert contents(result.conversations) == ["a b c d", "a b e f"]
    assert result.problems == []


def test_tree_branches_end_at_last_answer(bring: Convert) -> None:
    rows = lines(
        spoken("1", None, "prompter"),
        spoken("2", "1", "assistant"),
        spoken("3", "2", "prompter"),
        spoken("4", "1", "assistant"),
    )

    result = bring(rows, mapping=SPOKEN)

    assert contents(result.conversations) == ["says 1 says 2", "says 1 says 4"]
    assert result.problems == [("missing_answer", 1, [3])]


def test_orphans_and_cycles_are_reported_by_row(bring: Convert) -> None:
    rows = lines(
        pair("1", None, "a", "b"),
        pair("2", "gone", "a", "b"),
        pair("3", "2", "a", "b"),
        pair("4", "5", "a", "b"),
        pair("5", "4", "a", "b"),
        pair("1", None, "a", "b"),
        pair("", None, "a", "b"),
    )

    result = bring(rows, mapping=PAIRS)

    assert contents(result.conversations) == ["a b"]
    assert sorted(result.problems) == [
        ("cycle", 2, [4, 5]),
        ("orphan", 2, [2, 3]),
        ("repeated_id", 2, [6, 7]),
    ]


def test_integer_and_float_ids_match(bring: Convert) -> None:
    result = bring("id,parent_id,prompt,answer\n1,,a,b\n2,1.0,c,d\n", "rows.csv")

    assert contents(result.conversations) == ["a b c d"]


def test_branches_of_tree_stay_in_one_split(bring: Convert) -> None:
    trees = [
        row
        for i in range(40)
        for row in (
            pair(f"{i}", None, f"root {i}", "b"),
            pair(f"{i} left", f"{i}", "left", "d"),
            pair(f"{i} right", f"{i}", "right", "f"),
        )
    ]
    halved = PAIRS.model_copy(update={"split": Split(kind="share", share=0.5)})

    result = bring(lines(*trees), mapping=halved)

    roots = [{row["messages"][0]["content"] for row in part} for part in (result.rows, result.held)]
    assert len(roots[0]) + len(roots[1]) == 40
    assert not roots[0] & roots[1]


def test_threads_exceeding_memory_limit_are_rejected_with_hint() -> None:
    threads = ThreadJoiner(PAIRS, held_bytes=1500)
    threads.add(RawRow(1, pair("1", None, "a", "b")))

    with pytest.raises(TooLargeError) as refused:
        threads.add(RawRow(2, pair("2", None, "a", "b")))

    assert refused.value.hint.startswith("Split the file without splitting threads")
    assert refused.value.param == "file"
