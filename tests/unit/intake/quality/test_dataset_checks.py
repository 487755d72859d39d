"""What is suspicious in rows that can be used."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from studio.intake.quality.dataset_checks import check_dataset
from studio.intake.quality.findings import Finding
from studio.intake.quality.row_checks import LONG_TOKENS
from studio.intake.row_formats.schema import make_turn
from studio.recipe.sections import Data

Row = dict[str, Any]


def pair(question: str, answer: str) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns}


def written(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def found(tmp_path: Path) -> Any:  # noqa: ANN401 -- a function of rows
    def look(rows: Sequence[Row], held: Sequence[Row] = ()) -> dict[str, Finding]:
        train = written(tmp_path / "train.jsonl", rows)
        validation = written(tmp_path / "validation.jsonl", held) if held else None
        return {one.code: one for one in check_dataset(train, validation).findings}

    return look


def several(count: int) -> list[Row]:
    return [pair(f"What is {i} and {i}?", f"It is {2 * i}.") for i in range(count)]


def test_clean_rows_give_no_findings(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found(several(40), several(80)[60:]) == {}


@pytest.mark.parametrize(
    ("code", "row"),
    [
        ("control_characters", pair("Ring\x07", "Yes.")),
        ("control_characters", pair("Read \u202eme", "Yes.")),
        ("misread", pair("Where is the cafÃ©?", "There.")),
        ("misread", pair("Itâ€™s late", "So it is.")),
        ("lost_characters", pair("Fa\N{REPLACEMENT CHARACTER}ade?", "Front.")),
        ("says_nothing", pair("Well?", "...")),
        ("over_long", pair("Go on", "word " * 1000)),
    ],
)
def test_suspicious_row_is_reported(found: Any, code: str, row: Row) -> None:  # noqa: ANN401 -- see above
    told = found([*several(30), row])
    assert {name: (one.count, one.rows) for name, one in told.items()} == {code: (1, [31])}


@pytest.mark.parametrize("text", ["Ça va à Nîmes, où l'été…", "Äpfel für £5 — “ja”", "Привет, мир"])
def test_letters_of_other_languages_are_not_reported_as_misread(found: Any, text: str) -> None:  # noqa: ANN401 -- see above
    assert found([pair(f"{text} {i}", f"{text} {i + 1}!") for i in range(30)]) == {}


@pytest.mark.parametrize(
    "roles",
    [
        ("user", "user", "assistant"),
        ("assistant", "user", "assistant"),
        ("user", "assistant", "assistant"),
        ("user", "system", "assistant"),
    ],
)
def test_turns_out_of_order_are_reported(found: Any, roles: tuple[str, ...]) -> None:  # noqa: ANN401 -- see above
    turns = [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]
    assert found([*several(3), {"messages": turns}])["out_of_order"].rows == [4]


def test_assistant_turn_may_follow_tool_turn(found: Any) -> None:  # noqa: ANN401 -- see above
    roles = ("system", "user", "assistant", "tool", "assistant")
    turns = [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]
    assert found([*several(3), {"messages": turns}]) == {}


def test_all_duplicate_rows_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found([*several(30), *several(30)])
    assert (told["duplicates"].count, told["duplicates"].rows) == (30, list(range(31, 61)))
    assert told["duplicates"].twins == list(range(1, 31))
    assert "same_question" not in told


def test_repeated_question_with_other_answer_is_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found([*several(30), pair("What is 3 and 3?", "Six, I think.")])
    assert {code: (one.count, one.rows) for code, one in told.items()} == {
        "same_question": (1, [31])
    }


def test_questions_in_both_train_and_validation_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found(several(30), [pair("Is it new?", "Yes."), *several(2)])
    one = told["overlap"]
    assert (one.part, one.count, one.rows, one.twins) == ("validation", 2, [2, 3], [1, 2])


def test_row_in_other_script_is_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found([*several(30), pair("Как дела?", "Хорошо, спасибо.")])
    assert (
        told["other_script"].message
        == "Some rows are mostly in Cyrillic; the other rows are in Latin"
    )
    assert told["other_script"].rows == [31]


def test_many_rows_in_second_script_are_not_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    other = [pair(f"Сколько будет {i}?", f"Будет {i}.") for i in range(20)]
    assert found([*several(30), *other]) == {}


def test_imbalanced_classes_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [pair(f"Text {i}", "no" if i else "yes") for i in range(50)]
    told = found(rows)["uneven_classes"]
    assert (told.count, told.rows) == (1, [1])
    assert told.message.startswith(
        "The 2 classes are imbalanced: “no” occurs 49 times, “yes” 1 time."
    )


def test_identical_answers_to_all_rows_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found([pair(f"Text {i}", "fine") for i in range(30)])["one_answer"].count == 30


NO_ANSWER: dict[str, Callable[[int], Row]] = {
    "text": lambda i: {"text": f"Text {i}"},
    "pair": lambda i: {"anchor": f"Question {i}", "positive": f"Answer {i}"},
    "task": lambda i: {"messages": [make_turn("user", f"Question {i}")], "item": {"n": i}},
    "words": lambda i: {"text": f"Text {i}", "words": ["Text", str(i)], "tags": ["O", "O"]},
    "call": lambda i: {
        "messages": [
            make_turn("user", f"Question {i}"),
            {**make_turn("assistant", ""), "tool_calls": [{"function": {"name": f"f{i}"}}]},
        ]
    },
}


@pytest.mark.parametrize("kind", NO_ANSWER)
def test_rows_without_written_answers_are_no_classes(found: Any, kind: str) -> None:  # noqa: ANN401 -- see above
    assert (
        not {"one_answer", "uneven_classes"} & found([NO_ANSWER[kind](i) for i in range(30)]).keys()
    )


def test_data_without_good_answers_blocks_start(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found([row | {"label": False} for row in several(30)])
    assert [one.code for one in told.values() if one.blocking] == ["no_good_answers"]


def test_single_good_answer_blocks_start(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found([row | {"label": i == 7} for i, row in enumerate(several(30))])
    assert [one.code for one in told.values() if one.blocking] == ["too_few_rows"]


def test_single_row_blocks_start(found: Any) -> None:  # noqa: ANN401 -- see above
    assert found(several(1))["too_few_rows"].blocking
    assert found(several(1), several(9)[5:]) == {}


def test_plain_text_rows_are_checked(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [{"text": f"Chapter {i}."} for i in range(30)]
    told = found([*rows, {"text": "Chapter 7."}, {"text": "A bell:\x07"}])
    assert {code: one.rows for code, one in told.items()} == {
        "duplicates": [31],
        "control_characters": [32],
    }


def test_long_row_threshold_matches_default_max_length() -> None:
    assert Data().max_length == LONG_TOKENS


def preference(number: int, better: str, worse: str) -> Row:
    return {
        "messages": [{"role": "user", "content": f"Question {number}?"}],
        "chosen": [{"role": "assistant", "content": better}],
        "rejected": [{"role": "assistant", "content": worse}],
    }


def test_equal_answers_of_a_pair_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [preference(i, f"Right {i}.", f"Wrong, {i}.") for i in range(12)]
    told = found([*rows, preference(12, "The same.", " The  same.")])

    assert {name: (one.count, one.rows) for name, one in told.items()} == {"equal_pair": (1, [13])}


@pytest.mark.parametrize(("longer", "is_found"), [(30, True), (24, True), (23, False), (0, False)])
def test_better_answers_that_are_mostly_longer_are_reported(
    found: Any,  # noqa: ANN401 -- see above
    longer: int,
    *,
    is_found: bool,
) -> None:
    rows = [
        preference(i, f"{i} is long enough." if i < longer else f"{i}.", f"{i} is short.")
        for i in range(30)
    ]
    told = found(rows)

    assert ("longer_is_better" in told) is is_found
    if is_found:
        share = 100 * longer // 30
        assert told["longer_is_better"].message.startswith(f"In {share} % of the pairs")


@pytest.mark.parametrize(("bad", "is_found"), [(1, True), (3, False), (15, False), (29, True)])
def test_one_sided_ratings_are_reported(
    found: Any,  # noqa: ANN401 -- see above
    bad: int,
    *,
    is_found: bool,
) -> None:
    told = found([row | {"label": i >= bad} for i, row in enumerate(several(30))])

    assert ("one_sided" in told) is is_found


def test_rated_answers_to_one_question_are_no_finding(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [pair(f"Question {i // 2}?", f"Answer {i}.") | {"label": i % 2 == 0} for i in range(40)]

    assert found(rows) == {}


@pytest.mark.parametrize(
    ("better", "worse", "is_found"),
    [
        ("It is Paris.", "it is paris", True),
        ("对、是北京。", "对是北京!", True),
        ("It is Paris.", "It is Parts.", False),
        ("It is 1.5", "It is 15.", False),
        ("...", "!", False),
    ],
)
def test_pair_that_differs_in_punctuation_alone_is_reported(
    found: Any,  # noqa: ANN401 -- see above
    better: str,
    worse: str,
    *,
    is_found: bool,
) -> None:
    rows = [preference(i, f"Right {i}.", f"Wrong, {i}.") for i in range(12)]
    told = found([*rows, preference(12, better, worse)])

    assert [one.rows for code, one in told.items() if code == "similar_pair"] == [[13]] * is_found


def test_pairs_that_contradict_each_other_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [preference(i, f"Right {i}.", f"Wrong, {i}.") for i in range(12)]
    told = found([*rows, preference(3, "Wrong, 3.", "Perhaps 3.")])["contradiction"]

    assert (told.count, told.rows) == (1, [13])
    assert told.message.startswith("The better answer of one row is the worse answer of another")


def labelled(*labels: str) -> list[Row]:
    """Return twelve texts for each label, and a list of labels where it has several."""
    rows = []
    for i in range(12 * len(labels)):
        label = labels[i % len(labels)]
        names = {"labels": label.split("+")} if "+" in label else {}
        rows.append(pair(f"Text {i} of {len(labels)}", label.replace("+", ", ")) | names)
    return rows


def test_numbers_far_from_all_others_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    rows = [pair(f"How many in box {i}?", str(1_000_000 if i == 7 else i)) for i in range(40)]

    assert found(rows)["outlying_numbers"].rows == [8]
    assert "outlying_numbers" not in found(rows[:7] + rows[8:])


def test_labels_of_few_rows_are_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    rare = [pair(f"Rare text {i}", "rare") for i in range(3)]
    told = found([*labelled("sport", "news"), *rare])["rare_labels"]

    assert told.message == "Labels with fewer than 5 training rows are hardly learned: rare"
    assert told.count == 3
    assert "rare_labels" not in found([*labelled("sport", "news"), *rare, *rare])
    assert "rare_labels" not in found(several(40))


def test_class_that_one_part_lacks_is_reported(found: Any) -> None:  # noqa: ANN401 -- see above
    held = [pair(f"Other text {i}", ("sport", "天气")[i % 2]) for i in range(6)]
    told = found(labelled("sport", "Sport", "news"), held)

    unmeasured, unseen = told["unmeasured_classes"], told["unseen_classes"]
    assert (unmeasured.part, unmeasured.count) == ("train", 24)
    assert "“Sport”, “news”" in unmeasured.message
    assert (unseen.part, unseen.rows) == ("validation", [2, 4, 6])
    assert "“天气”" in unseen.message


def test_labels_of_a_list_count_one_by_one(found: Any) -> None:  # noqa: ANN401 -- see above
    held = [pair(f"Other {i}", "a") | {"labels": ["a"]} for i in range(6)]
    told = found(labelled("a+b", "a+c"), held)

    assert "“b”, “c”" in told["unmeasured_classes"].message
    assert "unseen_classes" not in told


def test_answers_that_are_no_classes_lack_none(found: Any) -> None:  # noqa: ANN401 -- see above
    told = found(several(40), [pair(f"And {i}?", f"Then {i}.") for i in range(40)])

    assert told == {}
