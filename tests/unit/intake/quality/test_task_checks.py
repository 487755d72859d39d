"""What is suspicious in tasks: prompts that say nothing, and columns that some rows lack."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from studio.intake.quality.dataset_checks import check_dataset
from studio.intake.quality.findings import Finding
from studio.intake.quality.row_checks import locate_finding

Row = dict[str, Any]


def task(prompt: str, **item: Any) -> Row:  # noqa: ANN401 -- any JSON value
    return {"messages": [{"role": "user", "content": prompt}], "item": item}


def several(count: int) -> list[Row]:
    return [task(f"What is {i} and {i}?", answer=2 * i) for i in range(count)]


@pytest.fixture
def found(tmp_path: Path) -> Any:  # noqa: ANN401 -- a function of rows
    def look(rows: Sequence[Row], held: Sequence[Row] = ()) -> dict[str, Finding]:
        paths = [tmp_path / name for name in ("train.jsonl", "validation.jsonl")]
        for path, part in zip(paths, (rows, held), strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
        report = check_dataset(paths[0], paths[1] if held else None)
        assert report.answers.rows == 0
        return {one.code: one for one in report.findings}

    return look


def test_clean_tasks_give_no_findings(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found(several(40), several(60)[40:]) == {}


def test_empty_column_is_reported_with_its_rows(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [
        task("One?", level=1),
        task("Two?", answer=" ", level=1, note=""),
        task("Three?", answer=0, level=None, note=None),
        task("Four?", answer=False, level=2),
        task("Five?", answer="b", level=3, late="here"),
    ]
    told = found(rows)

    assert list(told) == ["empty_columns"]
    assert told["empty_columns"].message == (
        "Graders that read level, answer, late cannot score these rows: they have no value there"
    )
    assert (told["empty_columns"].count, told["empty_columns"].rows) == (4, [1, 2, 3, 4])


def test_column_that_is_empty_everywhere_is_not_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found([task(f"Is it {i}?", note=None) for i in range(30)]) == {}


def test_repeated_prompts_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found([*several(30), task("What is 3 and 3?", answer=7), several(6)[5]])

    assert {code: (one.count, one.rows, one.twins) for code, one in told.items()} == {
        "duplicates": (1, [32], [6]),
        "same_question": (1, [31], [4]),
    }
    assert "with different columns for graders" in told["same_question"].message


def test_prompts_of_both_parts_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found(several(30), [task("What is 3 and 3?", answer=7)])

    assert (told["overlap"].part, told["overlap"].rows) == ("validation", [1])
    assert "loss" not in told["overlap"].message


def test_prompt_that_says_nothing_is_reported_and_shown(found: Any) -> None:  # noqa: ANN401 -- see above
    row = task("?!", answer="A")
    told = found([*several(30), row])

    assert {code: one.rows for code, one in told.items()} == {"empty_prompt": [31]}
    assert locate_finding("empty_prompt", row).turns == (0,)
