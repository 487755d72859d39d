"""What a mapping does to the rows of a file, and when it is refused."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from studio.errors import InvalidError
from studio.intake.column_roles import check_mapping, roles_for_shape
from studio.intake.conversion.converter import ConversionResult, SourceFile, convert_file
from studio.intake.files.limits import Limits
from studio.intake.mapping import Condition, FilterOp, Mapping, Split
from tests.unit.intake.conftest import Convert, read_kept_rows

PAIR = Mapping(shape="prompt_completion", roles={"prompt": ["q"], "completion": ["a"]})


def changed(**changes: Any) -> Mapping:  # noqa: ANN401 -- any field of a mapping
    return PAIR.model_copy(update=changes)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def numbered(count: int) -> str:
    return lines(*({"q": f"question {i}", "a": f"answer {i}"} for i in range(count)))


def questions(rows: list[dict[str, Any]]) -> list[str]:
    return [row["messages"][0]["content"] for row in rows]


def test_columns_are_joined_and_system_prompt_is_prepended(bring: Convert) -> None:
    mapping = changed(
        roles={"prompt": ["title", "q"], "completion": ["a"], "system": ["s"]},
        joiner=" | ",
        system="Be brief.",
    )

    result = bring(
        lines(
            {"title": "t", "q": "u", "a": "b", "s": ""},
            {"title": "", "q": 4, "a": "b", "s": "Be kind."},
        ),
        mapping=mapping,
    )

    said = [[turn["content"] for turn in turns] for turns in result.conversations]
    assert said == [["Be brief.", "t | u", "b"], ["Be kind.", "4", "b"]]


def test_mapped_values_replace_original_values(bring: Convert) -> None:
    mapping = Mapping(
        shape="classification",
        roles={"text": ["review"], "label": ["stars"]},
        values={"stars": {"1": "bad", "true": "good"}},
    )

    rows = lines(*({"review": "it", "stars": stars} for stars in (1, True, 3)))
    result = bring(rows, mapping=mapping)

    assert [turns[-1]["content"] for turns in result.conversations] == ["bad", "good", "3"]


def test_non_numeric_value_is_reported(bring: Convert) -> None:
    mapping = Mapping(shape="regression", roles={"text": ["q"], "number": ["a"]})

    result = bring(lines({"q": "x", "a": 0.5}, {"q": "x", "a": "none"}), mapping=mapping)

    assert [turns[-1]["content"] for turns in result.conversations] == ["0.5"]
    assert result.problems == [("not_a_number", 1, [2])]


def test_list_of_labels_is_kept_beside_its_answer(bring: Convert) -> None:
    mapping = Mapping(
        shape="classification",
        roles={"text": ["q"], "label": ["tags"]},
        values={"tags": {"1": "sport"}},
    )

    rows = lines(
        {"q": "x", "tags": [1, "news", 1]},
        {"q": "y", "tags": '["news"]'},
        {"q": "z", "tags": []},
        {"q": "w", "tags": 1},
    )
    result = bring(rows, mapping=mapping)

    assert [row.get("labels") for row in result.rows] == [["sport", "news"], ["news"], [], None]
    answers = [turns[-1]["content"] for turns in result.conversations]
    assert answers == ["sport, news", "news", "none", "sport"]


def test_numbers_are_kept_beside_their_answer(bring: Convert) -> None:
    roles = {"text": ["q"], "number": ["a", "b"]}

    rows = lines(
        {"q": "x", "a": 1.5, "b": "2"}, {"q": "y", "a": 1, "b": None}, {"q": "z", "a": 1, "b": "c"}
    )
    result = bring(rows, mapping=Mapping(shape="regression", roles=roles))

    assert [row["numbers"] for row in result.rows] == [{"a": 1.5, "b": 2.0}]
    assert [turns[-1]["content"] for turns in result.conversations] == ["a: 1.5, b: 2"]
    assert result.problems == [("missing_answer", 1, [2]), ("not_a_number", 1, [3])]


def test_steps_are_kept_with_their_verdicts(bring: Convert) -> None:
    roles = {"prompt": ["q"], "steps": ["steps"], "verdicts": ["right"]}

    rows = lines(
        {"q": "x", "steps": ["a ", "b"], "right": [True, False]},
        {"q": "x", "steps": '["c"]', "right": "[-1]"},
        {"q": "y", "steps": ["a", "b"], "right": [1]},
        {"q": "y", "steps": ["a"], "right": ["perhaps"]},
        {"q": "y", "steps": ["a", " "], "right": [1, 1]},
        {"q": "y", "steps": "a", "right": [1]},
        {"q": "", "steps": ["a"], "right": [1]},
    )
    result = bring(rows, mapping=Mapping(shape="steps", roles=roles))

    assert [(row["steps"], row["correct"]) for row in result.rows] == [
        (["a", "b"], [True, False]),
        (["c"], [False]),
    ]
    assert result.problems == [
        ("bad_verdicts", 2, [3, 4]),
        ("no_steps", 2, [5, 6]),
        ("missing_question", 1, [7]),
    ]


@pytest.mark.parametrize(
    ("op", "value", "left"),
    [
        ("is", "question 1", ["question 1"]),
        ("is_not", "question 1", ["question 0", "question 2"]),
        ("contains", "2", ["question 2"]),
        ("lacks", "2", ["question 0", "question 1"]),
        ("longer_than", "9", ["question 0", "question 1", "question 2"]),
        ("shorter_than", "11", ["question 0", "question 1", "question 2"]),
    ],
)
def test_rows_are_filtered_by_column_value(
    bring: Convert, op: FilterOp, value: str, left: list[str]
) -> None:
    mapping = changed(keep=[Condition(column="q", op=op, value=value)])

    result = bring(numbered(3), mapping=mapping)

    assert questions(result.rows) == left
    assert result.converted.removed.get("filtered", 0) == 3 - len(left)
    assert result.problems == []


def test_rows_are_excluded_by_number(bring: Convert) -> None:
    result = bring(numbered(4), mapping=changed(exclude=[1, 3]))

    assert questions(result.rows) == ["question 1", "question 3"]
    assert result.converted.removed == {"excluded": 2}


def test_sample_is_exact_ordered_and_reproducible(
    bring: Convert,
) -> None:
    first, again, other = (
        questions(bring(numbered(200), mapping=changed(sample=20, seed=seed)).rows)
        for seed in (1, 1, 2)
    )

    assert len(first) == 20
    assert first == again
    assert first != other
    assert first == sorted(first, key=lambda question: int(question.split()[1]))


def test_sample_larger_than_dataset_returns_all_rows(bring: Convert) -> None:
    result = bring(numbered(5), mapping=changed(sample=20))

    assert (result.converted.rows, result.converted.removed) == (5, {})


@pytest.mark.parametrize(("deduplicate", "left"), [("none", 4), ("exact", 3), ("question", 2)])
def test_duplicates_are_removed_by_chosen_mode(bring: Convert, deduplicate: str, left: int) -> None:
    rows = lines(
        {"q": "a", "a": "b"}, {"q": "a", "a": "b"}, {"q": "a", "a": "c"}, {"q": "d", "a": "c"}
    )

    result = bring(rows, mapping=changed(deduplicate=deduplicate))

    assert result.converted.rows == left
    assert result.converted.removed.get("duplicate", 0) == 4 - left


def test_share_split_keeps_identical_rows_together(bring: Convert) -> None:
    mapping = changed(split=Split(kind="share", share=0.25))
    twice = numbered(400) + numbered(400)

    result = bring(twice, mapping=mapping)

    train, held = set(questions(result.rows)), set(questions(result.held))
    assert (len(train | held), len(train & held)) == (400, 0)
    assert 60 <= len(held) <= 140
    assert result.converted.validation_rows == 2 * len(held)


def test_share_split_is_stable_when_rows_are_added(bring: Convert) -> None:
    mapping = changed(split=Split(kind="share", share=0.25))

    before = set(questions(bring(numbered(100), mapping=mapping).held))
    after = set(questions(bring(numbered(150), mapping=mapping).held))

    assert before == {question for question in after if int(question.split()[1]) < 100}


def test_small_share_holds_out_at_least_one_row(bring: Convert) -> None:
    mapping = changed(split=Split(kind="share", share=0.001))

    result = bring(numbered(5), mapping=mapping)

    assert (len(result.rows), len(result.held)) == (4, 1)
    assert sorted(questions(result.rows + result.held)) == [f"question {i}" for i in range(5)]


def test_split_column_assigns_rows_to_splits(bring: Convert) -> None:
    rows = lines(
        {"q": "a", "a": "b", "part": "Train"},
        {"q": "c", "a": "d", "part": "dev "},
        {"q": "e", "a": "f", "part": "hidden"},
    )

    result = bring(rows, mapping=changed(split=Split(kind="column", column="part")))

    assert (questions(result.rows), questions(result.held)) == (["a"], ["c"])
    assert result.converted.removed == {"other_part": 1}


def test_validation_file_uses_same_mapping_and_is_held_out(tmp_path: Path) -> None:
    result = with_validation(tmp_path, numbered(3), lines({"q": "x", "a": "y"}, {"q": "x"}))

    assert questions(read_kept_rows(tmp_path, "validation")) == ["x"]
    assert (result.rows, result.validation_rows) == (3, 1)
    assert [(one.code, one.split, one.rows) for one in result.problems] == [
        ("missing_answer", "validation", [2])
    ]


def test_validation_file_with_other_columns_is_mapped_separately(tmp_path: Path) -> None:
    with_validation(tmp_path, numbered(3), lines({"instruction": "x", "output": "y"}))

    assert questions(read_kept_rows(tmp_path, "validation")) == ["x"]


def test_validation_file_may_lack_optional_columns(tmp_path: Path) -> None:
    mapping = changed(
        roles={**PAIR.roles, "system": ["s"]},
        values={"a": {"1": "one"}},
        split=Split(kind="dataset"),
    )

    with_validation(
        tmp_path, lines({"q": "x", "a": "1", "s": "Count."}), lines({"q": "y", "a": "1"}), mapping
    )

    (held,) = read_kept_rows(tmp_path, "validation")
    assert [turn["content"] for turn in held["messages"]] == ["y", "one"]


def test_identical_rows_are_all_used_for_training(bring: Convert) -> None:
    mapping = changed(split=Split(kind="share", share=0.5))

    counts = {
        (converted.rows, converted.validation_rows)
        for seed in range(6)
        for converted in [
            bring(
                lines({"q": "x", "a": "y"}) * 3, mapping=mapping.model_copy(update={"seed": seed})
            ).converted
        ]
    }

    assert counts == {(3, 0)}


def test_split_without_training_rows_is_rejected(bring: Convert) -> None:
    rows = lines({"q": "x", "a": "y", "part": "test"})

    with pytest.raises(InvalidError) as refused:
        bring(rows, mapping=changed(split=Split(kind="column", column="part")))

    assert refused.value.message == "No training rows left: every row is for validation (1)."
    assert refused.value.param == "split.kind"


def test_validation_file_of_other_type_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as refused:
        with_validation(tmp_path, numbered(3), lines({"text": "Once"}))

    assert refused.value.param == "validation_file"
    assert refused.value.message == (
        "Validation rows are of type text, but training rows are of type conversation."
    )


def test_dataset_split_without_validation_file_is_rejected(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(numbered(3), mapping=changed(split=Split(kind="dataset")))

    assert refused.value.param == "split.kind"


def test_same_mapping_and_file_give_same_hash(bring: Convert) -> None:
    halved = changed(split=Split(kind="share", share=0.5))

    hashes = [
        bring(numbered(50), mapping=mapping).converted.sha256 for mapping in (PAIR, PAIR, halved)
    ]

    assert hashes[0] == hashes[1] != hashes[2]


def test_source_row_numbers_are_stored(bring: Convert, tmp_path: Path) -> None:
    bring(numbered(4), mapping=changed(exclude=[2]))

    numbers = (tmp_path / "train.numbers").read_bytes()
    assert [int.from_bytes(numbers[i : i + 8], "little") for i in (0, 8, 16)] == [1, 3, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_conversion_reports_progress(tmp_path: Path, packed: bool) -> None:  # noqa: FBT001 -- a parameter of pytest
    content = numbered(40_000).encode()
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    told: list[float] = []

    convert_file(SourceFile(path=path, filename=path.name), PAIR, tmp_path, Limits(), told.append)

    assert told == sorted(told)
    assert told[-1] == 1
    assert sum(0.1 < share < 0.9 for share in told) >= 3


def test_mapping_that_excludes_all_rows_gives_counts_by_reason(bring: Convert) -> None:
    nothing = changed(keep=[Condition(column="q", op="is", value="other")])

    with pytest.raises(InvalidError) as refused:
        bring(numbered(3), mapping=nothing)

    assert refused.value.message == "All rows are excluded. Excluded by a filter: 3 rows."
    assert refused.value.param == "keep"


@pytest.mark.parametrize(
    ("mapping", "param"),
    [
        (changed(roles={"prompt": ["q"]}), "roles.completion"),
        (changed(roles={"prompt": ["q"], "completion": []}), "roles.completion"),
        (changed(roles={"prompt": ["q"], "completion": ["z"]}), "roles.completion"),
        (changed(roles={**PAIR.roles, "chosen": ["a"]}), "roles.chosen"),
        (changed(roles={**PAIR.roles, "tools": ["q", "a"]}), "roles.tools"),
        (changed(keep=[Condition(column="z", op="is", value="")]), "keep.0.column"),
        (changed(values={"z": {}}), "values.z"),
        (changed(split=Split(kind="column")), "split.column"),
        (Mapping(shape="judged", roles={"label": ["q"], "prompt": ["a"]}), "roles.completion"),
        (Mapping(shape="thread", roles={"id": ["q"], "prompt": ["a"]}), "roles.parent"),
    ],
)
def test_invalid_mapping_error_names_its_field(mapping: Mapping, param: str) -> None:
    with pytest.raises(InvalidError) as refused:
        check_mapping(mapping, ["q", "a"])

    assert refused.value.param == param


@pytest.mark.parametrize(
    "made",
    [
        lambda: Condition(column="q", op="longer_than", value="many"),
        lambda: Condition(column="", op="is", value="a"),
        lambda: Split(kind="share", share=0.75),
        lambda: Mapping.model_validate({"shape": "text", "roles": {}, "regex": ".*"}),
        lambda: Mapping.model_validate({"shape": "poem", "roles": {}}),
    ],
)
def test_inconsistent_mapping_fails_validation(made: Callable[[], object]) -> None:
    with pytest.raises(ValidationError):
        made()


def test_mapping_round_trips_through_json() -> None:
    mapping = changed(keep=[Condition(column="q", op="is", value="a")], sample=3)

    assert Mapping.model_validate_json(mapping.model_dump_json()) == mapping


def test_roles_declare_required_and_joinable_columns() -> None:
    told = {
        role.name: (role.required, role.allows_several)
        for role in roles_for_shape("prompt_completion")
    }

    assert told == {
        "prompt": (False, True),
        "completion": (True, True),
        "context": (False, True),
        "images": (False, True),
        "system": (False, True),
        "tools": (False, False),
    }


def with_validation(
    folder: Path, train: str, validation: str, mapping: Mapping | None = None
) -> ConversionResult:
    brought, held = folder / "brought", folder / "held"
    brought.write_text(train)
    held.write_text(validation)
    return convert_file(
        SourceFile(path=brought, filename="rows.jsonl"),
        mapping or changed(split=Split(kind="dataset")),
        folder,
        Limits(),
        validation=SourceFile(path=held, filename="held.jsonl"),
    )
