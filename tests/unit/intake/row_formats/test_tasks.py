"""Tasks, in the forms that people have them: what graders may read, and what is refused."""

import io
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.errors import InvalidError
from studio.intake.column_roles import check_mapping
from studio.intake.mapping import Mapping
from studio.intake.mapping_text import describe_changes, describe_mapping
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import UnusableRowError
from studio.intake.row_formats.tasks import build_item
from tests.support.excel_files import excel_file
from tests.unit.intake.conftest import Convert

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
TURNS = Mapping(shape="task", roles={"messages": ["messages"], "item": ["reference_answer"]})
COLUMNS = Mapping(shape="task", roles={"prompt": ["question"], "item": ["answer", "level"]})
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def refusal(mapping: Mapping, row: dict[str, Any]) -> str:
    with pytest.raises(UnusableRowError) as refused:
        build_row(mapping, row)
    return refused.value.code


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_turns_are_the_prompt_and_columns_are_for_graders() -> None:
    row = {"messages": [USER], "reference_answer": {"value": 4, "near": [3.5, 4.5]}}

    assert build_row(TURNS, row) == {
        "messages": [USER],
        "item": {"reference_answer": {"value": 4, "near": [3.5, 4.5]}},
    }


def test_question_column_becomes_the_prompt() -> None:
    mapping = COLUMNS.model_copy(update={"system": "Be brief."})

    assert build_row(mapping, {"question": "2+2?", "answer": "4", "level": 1, "more": 0}) == {
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "item": {"answer": "4", "level": 1},
    }


def test_several_columns_are_one_prompt() -> None:
    mapping = Mapping(shape="task", roles={"prompt": ["story", "question"]})

    assert build_row(mapping, {"story": "Ann has 2.", "question": "And Bo?"}) == {
        "messages": [{"role": "user", "content": "Ann has 2.\n\nAnd Bo?"}],
        "item": {},
    }


def test_prompt_may_be_turns_of_any_spelling() -> None:
    turns = [{"from": "system", "value": "s"}, {"from": "human", "value": "2+2?"}]
    expected = [{"role": "system", "content": "s"}, USER]

    for mapping, column in ((TURNS, "messages"), (COLUMNS, "question")):
        assert build_row(mapping, {column: turns})["messages"] == expected  # type: ignore[typeddict-item] # of this kind
        assert build_row(mapping, {column: json.dumps(turns)})["messages"] == expected  # type: ignore[typeddict-item] # of this kind


def test_developer_speaks_as_the_system() -> None:
    row = {"messages": [{"role": "developer", "content": "Be brief."}, USER]}

    assert build_row(TURNS, row)["messages"] == [  # type: ignore[typeddict-item] # of this kind
        {"role": "system", "content": "Be brief."},
        USER,
    ]


def test_tools_are_kept_as_of_other_rows() -> None:
    mapping = Mapping(shape="task", roles={"messages": ["messages"], "tools": ["tools"]})

    row = build_row(mapping, {"messages": [USER], "tools": [TOOL["function"]]})
    assert row == {"messages": [USER], "item": {}, "tools": [TOOL]}


def test_task_may_end_with_the_result_of_a_tool() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
    ]

    assert build_row(TURNS, {"messages": turns})["messages"] == turns  # type: ignore[typeddict-item] # of this kind


@pytest.mark.parametrize(
    ("row", "reference"),
    [
        ({"messages": [USER, ANSWER]}, "4"),
        ({"messages": [USER, ANSWER], "reference_answer": None}, "4"),
        ({"messages": [USER, ANSWER], "reference_answer": "four"}, "four"),
        ({"messages": [USER, ANSWER], "reference_answer": 0}, 0),
        ({"messages": [USER, ANSWER, {"role": "assistant", "content": "Yes."}]}, "4\n\nYes."),
    ],
    ids=["none", "null", "its own", "zero", "two turns"],
)
def test_answer_after_the_prompt_is_a_reference(row: dict[str, Any], reference: object) -> None:
    assert build_row(TURNS, row) == {"messages": [USER], "item": {"reference_answer": reference}}


@pytest.mark.parametrize(
    ("turns", "code"),
    [
        ([ANSWER], "missing_question"),
        ([{"role": "system", "content": "s"}], "missing_question"),
        ([{"role": "user", "content": " "}], "missing_question"),
        ([USER, {"role": "system", "content": "s"}], "not_a_task"),
        ([], "no_turns"),
        ("2+2?", "no_turns"),
        ([{"role": "robot", "content": "s"}], "unknown_role"),
    ],
)
def test_unusable_prompt_is_refused(turns: object, code: str) -> None:
    assert refusal(TURNS, {"messages": turns}) == code


def test_missing_prompt_is_refused() -> None:
    assert refusal(COLUMNS, {"answer": "4"}) == "missing_question"
    assert refusal(COLUMNS, {"question": {"a": 1}, "answer": "4"}) == "not_text"


def test_columns_may_be_called_item_and_messages() -> None:
    mapping = Mapping(shape="task", roles={"prompt": ["p"], "item": ["item", "messages", "tools"]})
    columns = {"item": {"item": 1}, "messages": [USER, ANSWER], "tools": "hammer"}

    assert build_row(mapping, {"p": "2+2?", **columns}) == {"messages": [USER], "item": columns}


def test_columns_that_a_row_lacks_are_left_out_and_null_is_kept() -> None:
    assert build_row(COLUMNS, {"question": "2+2?", "level": None})["item"] == {"level": None}  # type: ignore[typeddict-item] # of this kind


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        *((one, one) for one in (None, True, 3, -0.5, 2**70, "", "四", [1, ["a"]], {"a": None})),
        (float("nan"), None),
        ([float("inf"), 1.0], [None, 1.0]),
        (Decimal("19.99"), 19.99),
        (Decimal("7.00"), 7),
        (Decimal("0.12345678901234567890"), "0.12345678901234567890"),
        (Decimal("NaN"), None),
        (date(2026, 11, 27), "2026-11-27"),
        (datetime(2026, 11, 27, 8, 30), "2026-11-27 08:30:00"),  # noqa: DTZ001 -- as files have it
        (time(8, 30), "08:30:00"),
        (timedelta(minutes=90), "1:30:00"),
        ("é".encode(), "é"),
        (b"\xff", None),
        ((1, 2), [1, 2]),
        ({1: b"a"}, {"1": "a"}),
    ],
    ids=repr,
)
def test_values_become_json(value: object, stored: object) -> None:
    made = build_item({"column": value})["column"]

    assert (made, type(made)) == (stored, type(stored))


def test_values_nested_too_deeply_are_refused() -> None:
    value: object = 0
    for _ in range(20_000):
        value = [value]

    assert refusal(COLUMNS, {"question": "2+2?", "level": value}) == "too_deep"


def test_replaced_values_are_what_graders_read() -> None:
    mapping = COLUMNS.model_copy(update={"values": {"level": {"1": "easy"}}})

    assert build_row(mapping, {"question": "2+2?", "level": 1})["item"] == {"level": "easy"}  # type: ignore[typeddict-item] # of this kind


def test_json_lines_keep_types(bring: Convert) -> None:
    item = {"reference": {"answers": [4, 4.0, "四"]}, "easy": True, "n": None}
    asked, answered = {"messages": [USER], **item}, {"messages": [USER, ANSWER]}
    made = bring(lines(*[asked] * 18, answered, {"messages": [ANSWER]}))

    assert made.converted.kind == "task"
    assert json.dumps(made.rows[0]["item"]) == json.dumps(item)
    assert made.rows[18]["item"] == {"reference_answer": "4"}
    assert made.problems == [("missing_question", 1, [20])]


def test_json_list_is_read(bring: Convert) -> None:
    made = bring(json.dumps([{"prompt": "二加二?", "ground_truth": "四"}] * 3), "rows.json")

    assert (
        made.rows
        == [{"messages": [{"role": "user", "content": "二加二?"}], "item": {"ground_truth": "四"}}]
        * 3
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "gb18030"])
def test_table_has_texts(bring: Convert, encoding: str) -> None:
    table = "问题,answer,level\n" + "二加二等于多少?,四,1\n三加三等于多少?,六,\n" * 20
    mapping = Mapping(
        shape="task",
        roles={"prompt": ["问题"], "item": ["answer", "level"]},
        file={"encoding": encoding} if encoding == "gb18030" else {},
    )
    made = bring(table.encode(encoding), "rows.csv", mapping)

    assert made.rows[:2] == [
        {
            "messages": [{"role": "user", "content": "二加二等于多少?"}],
            "item": {"answer": "四", "level": "1"},
        },
        {
            "messages": [{"role": "user", "content": "三加三等于多少?"}],
            "item": {"answer": "六", "level": ""},
        },
    ]


def test_workbook_keeps_numbers_and_writes_dates(bring: Convert) -> None:
    content = excel_file({"tasks": [["prompt", "n", "date"], ["2+2?", 4, date(2026, 11, 27)]]})

    assert bring(content, "rows.xlsx").rows == [
        {"messages": [USER], "item": {"n": 4, "date": "2026-11-27"}}
    ]


def test_parquet_keeps_nested_columns(bring: Convert) -> None:
    table = pa.table(
        {
            "prompt": pa.array([[USER], [USER]]),
            "reward_model": pa.array([{"style": "rule", "truth": [4.0, None]}] * 2),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "seen": pa.array([date(2026, 11, 27), None]),
            "score": pa.array([float("nan"), 0.5]),
            "blob": pa.array([b"\xff\x00", b"ok"]),
            "notes": pa.array([{"a": 1}, None], pa.map_(pa.string(), pa.int64())),
        }
    )
    out = io.BytesIO()
    parquet.write_table(table, out)
    first, second = bring(out.getvalue(), "rows.parquet").rows

    truth = {"style": "rule", "truth": [4.0, None]}
    assert first == {
        "messages": [USER],
        "item": {"reward_model": truth, "price": 1.5, "seen": "2026-11-27", "score": None}
        | {"blob": None, "notes": {"a": 1}},
    }
    assert second["item"] == {"reward_model": truth, "price": None, "seen": None} | {
        "score": 0.5,
        "blob": "ok",
        "notes": None,
    }


def test_equal_prompts_can_be_left_out(bring: Convert) -> None:
    mapping = COLUMNS.model_copy(update={"deduplicate": "question"})
    rows = [{"question": "2+2?", "answer": one, "level": 1} for one in ("4", "four")]
    made = bring(lines(*rows), mapping=mapping)

    assert [row["item"]["answer"] for row in made.rows] == ["4"]
    assert made.converted.removed == {"duplicate": 1}


def test_prompt_must_have_a_column() -> None:
    mapping = Mapping(shape="task", roles={"item": ["answer"]})

    with pytest.raises(InvalidError, match=r"No column selected for: prompt\."):
        check_mapping(mapping, ["question", "answer"])
    check_mapping(COLUMNS, ["question", "answer", "level"])


def test_mapping_is_described() -> None:
    fewer = COLUMNS.model_copy(update={"roles": COLUMNS.roles | {"item": ["answer"]}})

    assert describe_mapping(COLUMNS) == (
        "Prompts without answers, for graders (tasks): question, answer and level"
    )
    assert describe_changes(COLUMNS, fewer) == ["For graders: answer instead of answer and level."]
