"""What column-wise files nest: lists, structs, maps, and values that JSON does not know."""

import io
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.errors import InvalidError
from studio.intake.mapping import Mapping
from tests.unit.intake.conftest import Convert

Write = Callable[[pa.Table], bytes]


def as_parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def as_arrow(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table)
    return out.getvalue()


each_format = pytest.mark.parametrize(
    ("write", "filename"), [(as_parquet, "rows.parquet"), (as_arrow, "rows.arrow")]
)
TURN = pa.struct([("role", pa.string()), ("content", pa.string())])
TURNS = [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "ü."}]


@each_format
@pytest.mark.parametrize("kind", [pa.list_(TURN), pa.large_list(TURN), pa.list_(TURN, 2)])
def test_turns_in_any_list_type_become_conversation(
    bring: Convert, write: Write, filename: str, kind: pa.DataType
) -> None:
    result = bring(write(pa.table({"messages": pa.array([TURNS, TURNS], kind)})), filename)

    assert result.conversations == [TURNS, TURNS]


@each_format
def test_turns_as_maps_become_conversation(bring: Convert, write: Write, filename: str) -> None:
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    pairs = [[list(turn.items()) for turn in TURNS]]

    result = bring(write(pa.table({"messages": pa.array(pairs, kind)})), filename)

    assert result.conversations == [TURNS]


@each_format
def test_nested_content_parts_are_read(bring: Convert, write: Write, filename: str) -> None:
    part = pa.struct([("type", pa.string()), ("text", pa.string())])
    turn = pa.struct([("role", pa.string()), ("content", pa.list_(part))])
    said = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in TURNS]

    result = bring(write(pa.table({"messages": pa.array([said], pa.list_(turn))})), filename)

    assert result.conversations == [TURNS]


@each_format
def test_dictionary_encoded_strings_are_read(bring: Convert, write: Write, filename: str) -> None:
    answers = pa.array(["yes", "no", "yes"]).dictionary_encode()

    result = bring(write(pa.table({"prompt": ["a", "b", "c"], "completion": answers})), filename)

    assert [turns[-1]["content"] for turns in result.conversations] == ["yes", "no", "yes"]


@each_format
@pytest.mark.parametrize(
    "odd",
    [
        b"\xff\x00",
        [b"\xff"],
        {"deep": {"deeper": [1]}},
        True,
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_non_text_answer_is_rejected_with_message(
    bring: Convert, write: Write, filename: str, odd: object
) -> None:
    content = write(pa.table({"prompt": ["a", "b"], "completion": pa.array([odd, None])}))
    mapping = {"prompt": ["prompt"], "completion": ["completion"]}

    refused = refusal(bring, content, filename, mapping)

    assert refused == "None of the rows can be used. Row 1: A value is not text."


@each_format
def test_map_with_repeated_key_is_reported(bring: Convert, write: Write, filename: str) -> None:
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    good = [list(turn.items()) for turn in TURNS]
    bad = [[*good[0], ("role", "assistant")], good[1]]

    result = bring(write(pa.table({"messages": pa.array([good, bad], kind)})), filename)

    assert (result.conversations, result.problems) == ([TURNS], [("repeated_name", 1, [2])])


@each_format
def test_non_string_map_keys_are_accepted(bring: Convert, write: Write, filename: str) -> None:
    odd = pa.array([[(b"a", 1)]], pa.map_(pa.binary(), pa.int64()))
    table = pa.table({"prompt": ["a"], "completion": ["b"], "odd": odd})

    assert bring(write(table), filename).converted.rows == 1


@each_format
@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 1, 1, 12, 30, tzinfo=UTC), "2026-01-01 12:30:00+00:00"),
        (date(2026, 1, 1), "2026-01-01"),
        (Decimal("1.50"), "1.50"),
        (1.5, "1.5"),
        (2**40, "1099511627776"),
    ],
)
def test_numbers_and_dates_are_converted_to_text(
    bring: Convert, write: Write, filename: str, value: object, written: str
) -> None:
    content = write(pa.table({"prompt": ["a"], "completion": pa.array([value])}))

    assert bring(content, filename).conversations[0][1]["content"] == written


@each_format
def test_duplicate_columns_are_renamed_and_reported(
    bring: Convert, write: Write, filename: str
) -> None:
    columns = [pa.array([word]) for word in ("a", "b", "c")]
    table = pa.Table.from_arrays(columns, names=["prompt", "completion", "completion"])
    second = {"prompt": ["prompt"], "completion": ["completion 2"]}

    first = bring(write(table), filename)
    other = bring(write(table), filename, Mapping(shape="prompt_completion", roles=second))

    assert [one.conversations[0][1]["content"] for one in (first, other)] == ["b", "c"]
    assert first.problems[0] == ("renamed_columns", 0, [])


@each_format
def test_column_name_prefix_does_not_match_longer_name(
    bring: Convert, write: Write, filename: str
) -> None:
    table = pa.table({"prompt": ["a"], "prompt.en": ["b"], "completion": ["c"]})
    roles = {"prompt": ["prompt"], "completion": ["completion"]}

    result = bring(write(table), filename, Mapping(shape="prompt_completion", roles=roles))

    assert [turn["content"] for turn in result.conversations[0]] == ["a", "c"]


@each_format
@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_non_finite_number_is_not_accepted_as_score(
    bring: Convert, write: Write, filename: str, number: float
) -> None:
    rows = {"text": [f"film {i}" for i in range(20)], "score": [number, *map(float, range(19))]}

    result = bring(write(pa.table(rows)), filename)

    assert result.converted.mapping.shape == "regression"
    assert result.problems == [("not_a_number", 1, [1])]


def refusal(bring: Convert, content: bytes, filename: str, roles: dict[str, list[str]]) -> str:
    with pytest.raises(InvalidError) as refused:
        bring(content, filename, Mapping(shape="prompt_completion", roles=roles))
    return refused.value.message
