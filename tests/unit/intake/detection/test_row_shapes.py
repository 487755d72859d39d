"""Which columns are told to be what, how surely, and what is refused with its reason."""

from typing import Any

import pytest

from studio.errors import InvalidError
from studio.intake.detection.row_shapes import detect_mapping
from studio.intake.mapping import Mapping, Split
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import UnusableRowError

QUESTION = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
TURNS = [QUESTION, ANSWER]
SHARED = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    ("columns", "name", "roles"),
    [
        (
            {"instruction": "a", "context": "b", "response": "c"},
            "alpaca",
            {"instruction": "instruction", "input": "context", "output": "response"},
        ),
        (
            {"instruction": "a", "output": "c", "history": []},
            "alpaca",
            {"instruction": "instruction", "output": "output", "history": "history"},
        ),
        (
            {"Prompt": "a", "Response": "b"},
            "prompt_completion",
            {"prompt": "Prompt", "completion": "Response"},
        ),
        (
            {"input": "a", "output": "b"},
            "prompt_completion",
            {"prompt": "input", "completion": "output"},
        ),
        (
            {"context": "c", "question": "a", "answer": "b"},
            "prompt_completion",
            {"context": "context", "prompt": "question", "completion": "answer"},
        ),
        (
            {"prompt": "a", "completion": "b", "messages": TURNS},
            "messages",
            {"messages": "messages"},
        ),
        (
            {"messages": TURNS, "tools": []},
            "messages",
            {"messages": "messages", "tools": "tools"},
        ),
        ({"conversations": TURNS}, "messages", {"messages": "conversations"}),
        (
            {"system": "s", "conversations": SHARED},
            "sharegpt",
            {"system": "system", "conversations": "conversations"},
        ),
        (
            {"messages": None, "prompt": "a", "completion": "b"},
            "prompt_completion",
            {"prompt": "prompt", "completion": "completion"},
        ),
        (
            {
                "conversations": SHARED[:1],
                "chosen": SHARED[1],
                "rejected": {**SHARED[1], "value": "c"},
            },
            "preference",
            {"prompt": "conversations", "chosen": "chosen", "rejected": "rejected"},
        ),
        (
            {
                "input": {"messages": [QUESTION]},
                "preferred_output": [ANSWER],
                "non_preferred_output": [{**ANSWER, "content": "c"}],
            },
            "preference",
            {
                "prompt": "input",
                "chosen": "preferred_output",
                "rejected": "non_preferred_output",
            },
        ),
        (
            {"chosen": [QUESTION, ANSWER], "rejected": [QUESTION, {**ANSWER, "content": "c"}]},
            "preference",
            {"chosen": "chosen", "rejected": "rejected"},
        ),
        (
            {"prompt": "a", "answers": ["b", "c"], "scores": [1, 2]},
            "ranked",
            {"prompt": "prompt", "answers": "answers", "scores": "scores"},
        ),
        (
            {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]},
            "steps",
            {"prompt": "prompt", "steps": "completions", "verdicts": "labels"},
        ),
        (
            {"tokens": ["a", "b"], "ner_tags": [0, 1], "pos_tags": [3, 4]},
            "words",
            {"words": "tokens", "tags": "ner_tags"},
        ),
        (
            {"words": "['a' 'b']", "labels": "['O' 'B-x']", "tags": "other"},
            "words",
            {"words": "words", "tags": "labels"},
        ),
        (
            {"text": "a b", "label": [[0, 1, "x"]]},
            "spans",
            {"text": "text", "spans": "label"},
        ),
        (
            {"text": "a b", "entities": [{"start": 0, "end": 1, "label": "x"}], "tokens": [{}]},
            "spans",
            {"text": "text", "spans": "entities"},
        ),
        (
            {"text": "a b", "labels": ["x", "y"]},
            "classification",
            {"text": "text", "label": "labels"},
        ),
        ({"text": "a NN O\nb NN B-x"}, "lines", {"lines": "text"}),
        (
            {"question": "a", "steps": ["b"], "ratings": [-1]},
            "steps",
            {"prompt": "question", "steps": "steps", "verdicts": "ratings"},
        ),
        (
            {"prompt": "a", "completions": ["b", "c"], "labels": ["good one", "bad one"]},
            "ranked",
            {"prompt": "prompt", "answers": "completions"},
        ),
        (
            {"messages": TURNS, "label": True},
            "judged",
            {"messages": "messages", "label": "label"},
        ),
        (
            {"prompt": "a", "completion": "b", "kto_tag": "false"},
            "judged",
            {"prompt": "prompt", "completion": "completion", "label": "kto_tag"},
        ),
        ({"sentence": "a", "label": 1}, "classification", {"text": "sentence", "label": "label"}),
        ({"text": "a", "score": 0.25}, "regression", {"text": "text", "number": "score"}),
        ({"text": "a"}, "text", {"text": "text"}),
        ({"id": 7, "body": "a"}, "text", {"text": "body"}),
    ],
)
def test_common_column_names_determine_row_shape(
    columns: dict[str, Any], name: str, roles: dict[str, str]
) -> None:
    mapping = detect_mapping([columns]).mapping

    assert mapping.shape == name
    assert mapping.roles == {role: [column] for role, column in roles.items()}


LISTS: list[list[object]] = [
    [["sport", "news"], ["news"], []],
    ['["sport", "news"]', '["news"]', "[]"],
    ["['sport', 'news']", "['news']", "[]"],
    ["['sport' 'news']", "['news']", "[]"],
]
"""Labels of three texts: in JSON Lines or Parquet, and as JSON, Python and NumPy write lists to a
CSV file."""


@pytest.mark.parametrize("lists", LISTS)
def test_lists_of_labels_are_detected_and_read(lists: list[object]) -> None:
    rows = [{"Text": f"Text {i}", "Labels": lists[i % 3]} for i in range(12)]

    found = detect_mapping(rows)
    read = [build_row(found.mapping, row) for row in rows[:3]]

    assert (found.mapping.shape, found.sureness) == ("classification", "sure")
    assert [row.get("labels") for row in read] == [["sport", "news"], ["news"], []]


def test_columns_of_zeros_and_ones_are_labels() -> None:
    rows = [
        {"id": 7000 + i, "comment": f"Text {i}", "toxic": str(i % 2), "Insult": float(i % 3 == 0)}
        for i in range(12)
    ]

    mapping = detect_mapping(rows).mapping
    read = [build_row(mapping, row) for row in rows[:4]]

    assert mapping.shape == "classification"
    assert mapping.roles == {"text": ["comment"], "label": ["toxic", "Insult"]}
    assert [row.get("labels") for row in read] == [["Insult"], ["toxic"], [], ["toxic", "Insult"]]


def test_other_value_in_column_of_one_label_is_no_row() -> None:
    mapping = Mapping(shape="classification", roles={"text": ["t"], "label": ["a", "b"]})

    with pytest.raises(UnusableRowError) as refused:
        build_row(mapping, {"t": "Text", "a": 1, "b": "maybe"})

    assert refused.value.code == ProblemCode.NOT_AN_INDICATOR


def test_matching_parent_ids_are_detected_as_threads() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "parent_id": None, "instruction": "a", "output": "b"},
        {"id": 2, "parent_id": 1.0, "instruction": "c", "output": "d"},
    ]

    found = detect_mapping(rows)

    assert found.mapping.roles == {
        "id": ["id"],
        "parent": ["parent_id"],
        "prompt": ["instruction"],
        "answer": ["output"],
    }
    assert found.evidence == [
        "1 of 1 values of column parent_id are the id of another row, so the rows form threads.",
        "2 of 2 sampled rows are usable as conversations.",
    ]


def test_unmatched_parent_ids_make_no_threads() -> None:
    rows = [{"id": 1, "parent_id": 9, "instruction": "a", "output": "b"}]

    assert detect_mapping(rows).mapping.shape == "alpaca"


def test_detection_reports_evidence_and_sureness() -> None:
    rows = [{"instruction": "a", "output": "b"}] * 9 + [{"instruction": "a", "output": ""}]

    found = detect_mapping(rows)

    assert (found.kind, found.sureness) == ("conversation", "sure")
    assert found.evidence == [
        "Columns instruction and output match the Alpaca format.",
        "9 of 10 sampled rows are usable as conversations.",
    ]


@pytest.mark.parametrize(("answers", "sureness"), [(9, "sure"), (8, "likely"), (4, "guess")])
def test_unusable_rows_lower_sureness(answers: int, sureness: str) -> None:
    rows = [{"question": "a", "answer": "b" if i < answers else ""} for i in range(10)]

    assert detect_mapping(rows).sureness == sureness


def test_two_text_columns_are_guessed_as_prompt_and_completion() -> None:
    rows = [{"number": i, "left": f"word {i}", "right": f"other {i}"} for i in range(5)]

    found = detect_mapping(rows)

    assert found.mapping.roles == {"prompt": ["left"], "completion": ["right"]}
    assert (found.sureness, found.unused) == ("guess", ["number"])


def test_unsure_detection_lists_alternatives() -> None:
    rows = [{"text": f"word {i}", "url": f"site {i}"} for i in range(5)]

    found = detect_mapping(rows)

    assert (found.mapping.shape, found.sureness) == ("text", "likely")
    assert [other.shape for other in found.alternatives] == ["prompt_completion"]


def test_split_column_is_detected() -> None:
    rows = [
        {"question": "a", "answer": "b", "split": "train"},
        {"question": "c", "answer": "d", "split": "test"},
    ]

    assert detect_mapping(rows).mapping.split == Split(kind="column", column="split")


def test_column_with_few_distinct_words_is_guessed_as_label() -> None:
    rows = [{"remark": f"it is {i}", "mood": "good" if i % 2 else "bad"} for i in range(40)]

    found = detect_mapping(rows)

    assert found.mapping.roles == {"text": ["remark"], "label": ["mood"]}
    assert found.sureness == "guess"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"count": 1}, "No column can be trained on. The file has the column count."),
        ({}, "No column can be trained on. The file has no columns."),
        (
            dict.fromkeys("abcdefghijklmnop"),
            (
                "No column can be trained on. The file has the columns a, b, c, d, e, f, g, h, "
                "i, j, k, l and 4 more."
            ),
        ),
    ],
)
def test_untrainable_columns_are_rejected_with_reason(
    columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        detect_mapping([columns])

    assert refused.value.message == message


def test_text_label_does_not_make_pairs_judged() -> None:
    found = detect_mapping([{"question": "a", "answer": "b", "label": "history"}])

    assert (found.mapping.shape, found.unused) == ("prompt_completion", ["label"])


def test_text_pair_is_preferred_over_numeric_label() -> None:
    rows = [
        {
            "Ticket Text": f"My order {i} has not come yet, can you help?",
            "What we said": ("We are sorry.", "We will look into it at once.")[i % 2],
            "Agent #": i % 4,
        }
        for i in range(40)
    ]

    seen = detect_mapping(rows)

    assert seen.mapping.shape == "prompt_completion"
    assert seen.mapping.roles == {"prompt": ["Ticket Text"], "completion": ["What we said"]}
    assert (seen.sureness, seen.unused, len(seen.questions)) == ("guess", ["Agent #"], 1)


def test_label_column_prefers_words_over_small_numbers() -> None:
    rows = [{"remark": f"it is {i}", "mood": f"mood {i % 3}", "desk": i % 4} for i in range(40)]

    assert detect_mapping(rows).mapping.roles == {"text": ["remark"], "label": ["mood"]}
