"""Pairs of texts, in the forms that people have them: what is read, and what is refused."""

from typing import Any

import pytest

from studio.errors import InvalidError
from studio.intake.column_roles import check_mapping
from studio.intake.detection.row_shapes import detect_mapping
from studio.intake.mapping import Mapping
from studio.intake.quality.answer_facts import AnswerCounter
from studio.intake.quality.row_checks import row_texts
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import UnusableRowError, to_training_example
from studio.intake.rows.deduplication import question_key
from studio.training.data.rows import to_training_row

PAIR = Mapping(shape="pairs", roles={"anchor": ["q"], "positive": ["p"], "negatives": ["n", "m"]})
SCORED = Mapping(shape="pairs", roles={"anchor": ["q"], "positive": ["p"], "score": ["s"]})


@pytest.mark.parametrize(
    ("values", "negatives"),
    [
        ({}, None),
        ({"n": ""}, None),
        ({"n": "c"}, ["c"]),
        ({"n": " c ", "m": "d"}, ["c", "d"]),
        ({"n": ["c", "d"], "m": "c"}, ["c", "d"]),
        ({"n": '["c", "d"]'}, ["c", "d"]),
        ({"n": [{"title": "T", "text": "c"}, {"docid": "7", "text": "d"}]}, ["T\nc", "d"]),
        ({"n": [{"title": "", "contents": "c"}]}, ["c"]),
        ({"n": ["b", "c"]}, ["c"]),
    ],
)
def test_texts_that_do_not_match(values: dict[str, Any], negatives: list[str] | None) -> None:
    row = build_row(PAIR, {"q": " a ", "p": ["b"], **values})

    assert row == {"anchor": "a", "positive": "b"} | ({"negatives": negatives} if negatives else {})


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "[draft]", '["x", {"y": 2}]'])
def test_a_text_that_is_json_stays_a_text(text: str) -> None:
    assert build_row(PAIR, {"q": "a", "p": text}) == {"anchor": "a", "positive": text}


@pytest.mark.parametrize(
    ("value", "score"),
    [
        *((3.8, 3.8), ("0.25", 0.25), (1, 1.0), (True, 1.0), (False, 0.0), ("duplicate", 1.0)),
        *(("Not Duplicate", 0.0), ("entailment", 1.0), ("neutral", 0.5), ("contradiction", 0.0)),
    ],
)
def test_scores(value: object, score: float) -> None:
    row = build_row(SCORED, {"q": "a", "p": "b", "s": value})

    assert row == {"anchor": "a", "positive": "b", "score": score}


@pytest.mark.parametrize(
    ("mapping", "values", "code"),
    [
        (PAIR, {"p": "b"}, "no_pair"),
        (PAIR, {"q": "a", "p": "  "}, "no_pair"),
        (PAIR, {"q": "a", "p": []}, "no_pair"),
        (PAIR, {"q": "a", "p": ["b", "c"]}, "several_positives"),
        (PAIR, {"q": "a", "p": [{"docid": "7"}]}, "not_text"),
        (SCORED, {"q": "a", "p": "b"}, "no_similarity"),
        (SCORED, {"q": "a", "p": "b", "s": "maybe"}, "no_similarity"),
        (SCORED, {"q": "a", "p": "b", "s": float("nan")}, "no_similarity"),
    ],
)
def test_unusable_rows(mapping: Mapping, values: dict[str, Any], code: str) -> None:
    with pytest.raises(UnusableRowError) as refused:
        build_row(mapping, values)
    assert refused.value.code == code


def test_scores_and_negatives_exclude_each_other() -> None:
    mapping = Mapping(shape="pairs", roles={**PAIR.roles, "score": ["s"]})

    with pytest.raises(InvalidError, match="either scores or texts") as refused:
        check_mapping(mapping, ["q", "p", "n", "m", "s"])
    assert refused.value.param == "roles.score"


@pytest.mark.parametrize(
    ("columns", "roles"),
    [
        ({"anchor": "a", "positive": "b"}, {"anchor": ["anchor"], "positive": ["positive"]}),
        (
            {"query": "a", "pos": ["b"], "neg": ["c"]},
            {"anchor": ["query"], "positive": ["pos"], "negatives": ["neg"]},
        ),
        (
            {"Anchor": "a", "Positive": "b", "negative_1": "c", "negative_2": "d"},
            {
                "anchor": ["Anchor"],
                "positive": ["Positive"],
                "negatives": ["negative_1", "negative_2"],
            },
        ),
        (
            {"question": "a", "passage": "b", "label": 1},
            {"anchor": ["question"], "positive": ["passage"], "score": ["label"]},
        ),
        ({"query": "a", "document": "b"}, {"anchor": ["query"], "positive": ["document"]}),
        (
            {"question1": "a", "question2": "b", "is_duplicate": 0},
            {"anchor": ["question1"], "positive": ["question2"], "score": ["is_duplicate"]},
        ),
    ],
)
def test_detected_by_name(columns: dict[str, Any], roles: dict[str, list[str]]) -> None:
    found = detect_mapping([columns] * 3)

    assert (found.kind, found.mapping.roles) == ("pairs", roles)


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        ({"sentence1": "a", "sentence2": "b", "score": 2.5}, "regression"),
        ({"sentence1": "a", "sentence2": "b", "label": "entailment"}, "classification"),
        ({"premise": "a", "hypothesis": "b", "label": 0}, "classification"),
    ],
)
def test_two_texts_with_a_score_are_offered(columns: dict[str, Any], first: str) -> None:
    """Other methods read them as one text with a label or number."""
    found = detect_mapping([columns] * 30)
    (pair,) = (one for one in found.alternatives if one.shape == "pairs")
    roles = zip(("anchor", "positive", "score"), columns, strict=True)

    assert found.mapping.shape == first
    assert pair.roles == {role: [column] for role, column in roles}


@pytest.mark.parametrize("columns", [{"question": "a", "document": "b", "answer": "c"}])
def test_answers_come_before_passages(columns: dict[str, Any]) -> None:
    assert detect_mapping([columns] * 3).mapping.shape == "prompt_completion"


def test_numbers_of_inference_labels_are_named() -> None:
    """In SNLI, 0 means that one follows from the other, and -1 that it is unknown."""
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 1, 2, -1)] * 9
    (pair,) = (one for one in detect_mapping(rows).alternatives if one.shape == "pairs")

    assert [build_row(pair, row).get("score") for row in rows[:3]] == [1.0, 0.5, 0.0]
    with pytest.raises(UnusableRowError):
        build_row(pair, rows[3])


def test_what_a_pair_teaches() -> None:
    row = {"anchor": "a", "positive": "b", "negatives": ["c"]}
    example = to_training_example(row)
    trained = to_training_row(row, 1, "training")

    assert (example.text, trained.text) == ("a\nb\nc", "a\nb\nc")
    assert (trained.pair, trained.score) == (["a", "b", "c"], None)
    assert to_training_row({"anchor": "a", "positive": "b", "score": 2}, 1, "training").score == 2
    assert list(row_texts(row)) == ["a", "b", "c"]
    assert question_key({"anchor": "a", "positive": "b"}) == b"a"


@pytest.mark.parametrize(
    "row",
    [
        {"anchor": "a"},
        {"anchor": "a", "positive": 1},
        {"anchor": "a", "positive": "b", "negatives": "c"},
        {"anchor": "a", "positive": "b", "negatives": [1]},
        {"anchor": "a", "positive": "b", "score": "1"},
    ],
)
def test_a_line_that_is_no_pair(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^its "):
        to_training_row(row, 1, "training")


def test_facts_of_pairs() -> None:
    counter = AnswerCounter()
    for row in (
        {"anchor": "a", "positive": "b"},
        {"anchor": "a", "positive": "b", "negatives": ["c", "d"]},
        {"anchor": "a", "positive": "b", "score": 1.0},
    ):
        counter.add(row)
    facts = counter.facts()

    assert (facts.rows, facts.scored, facts.negatives) == (3, 1, 2)
