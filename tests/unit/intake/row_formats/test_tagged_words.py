"""Words with tags, in the forms that people have them: what is read, repaired and refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.intake.mapping import Mapping
from studio.intake.readers.label_names import read_label_names
from studio.intake.row_formats.row_builder import build_row
from studio.intake.row_formats.schema import UnusableRowError
from studio.intake.row_formats.tagged_words import (
    Entity,
    Segment,
    find_entities,
    place_words,
    split_segments,
    split_words,
    to_bio,
)
from tests.unit.intake.conftest import Convert

WORDS = Mapping(shape="words", roles={"words": ["words"], "tags": ["tags"]})
SPANS = Mapping(shape="spans", roles={"text": ["text"], "spans": ["spans"]})
LINES = Mapping(shape="lines", roles={"lines": ["text"]})


def refusal(mapping: Mapping, row: dict[str, Any]) -> str:
    with pytest.raises(UnusableRowError) as refused:
        build_row(mapping, row)
    return refused.value.code


@pytest.mark.parametrize(
    ("scheme", "tags", "found"),
    [
        ("IOB2", "B-X I-X O B-X B-X I-Y", "B-X I-X O B-X B-X B-Y"),
        ("IOB1", "I-X I-X O I-X B-X I-Y I-Y", "B-X I-X O B-X B-X B-Y I-Y"),
        ("IOBES", "B-X I-X E-X S-X O S-Y", "B-X I-X I-X B-X O B-Y"),
        ("BILOU", "B-X L-X U-X U-X I-X L-X O", "B-X I-X B-X B-X B-X I-X O"),
        ("BMES", "B-X M-X E-X S-Y O", "B-X I-X I-X B-Y O"),
        ("ends alone", "E-X E-X O", "B-X B-X O"),
        ("no scheme", "X X o Y", "B-X I-X O B-Y"),
        ("numbers", "0 3 3 1", "O B-3 I-3 B-1"),
        ("no labels", "B I O B B", "B-ENTITY I-ENTITY O B-ENTITY B-ENTITY"),
        ("labels with marks", "B-a-b I-a-b B-Ö", "B-a-b I-a-b B-Ö"),
    ],
)
def test_each_scheme_becomes_bio(scheme: str, tags: str, found: str) -> None:
    assert to_bio(tags.split()) == found.split(), scheme


def test_entities_of_tags() -> None:
    """By hand: an I- that continues nothing begins an entity."""
    tags = ["B-X", "I-X", "B-X", "O", "I-Y", "I-Y", "I-X", "O"]

    assert find_entities(tags) == [
        Entity(0, 2, "X"),
        Entity(2, 3, "X"),
        Entity(4, 6, "Y"),
        Entity(6, 7, "X"),
    ]
    assert find_entities([]) == find_entities(["O", "O"]) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada's in  Rome.", ["Ada", "'", "s", "in", "Rome", "."]),
        ("我在北京 2024年", ["我", "在", "北", "京", "2024", "年"]),
        ("हिन्दी में\n€5", ["हिन्दी", "में", "€", "5"]),
        ("", []),
    ],
)
def test_text_is_split_into_words(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words
    assert place_words(text, words) == split_words(text)


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        (["Ada", "lives", "in", "Rome"], ["B-per", "O", "O", "B-town"]),
        ('["Ada", "lives", "in", "Rome"]', '["B-per", "O", "O", "B-town"]'),
        ("['Ada', 'lives', 'in', 'Rome']", "['B-per', 'O', 'O', 'B-town']"),
        ("['Ada' 'lives' 'in' 'Rome']", "['B-per' 'O' 'O' 'B-town']"),
        ("Ada lives in Rome", "B-per O O B-town"),
        (["Ada", "lives", " ", "in", "Rome"], ["B-per", "O", "O", "O", "B-town"]),
    ],
)
def test_lists_are_read(words: object, tags: object) -> None:
    assert build_row(WORDS, {"words": words, "tags": tags}) == {
        "text": "Ada lives in Rome",
        "words": ["Ada", "lives", "in", "Rome"],
        "tags": ["B-per", "O", "O", "B-town"],
    }


def test_numbers_of_tags_are_names_and_0_is_outside() -> None:
    values = {"words": ["a", 7, "c"], "tags": "[0 1 1]"}

    assert build_row(WORDS, values) == {
        "text": "a 7 c",
        "words": ["a", "7", "c"],
        "tags": ["O", "B-1", "I-1"],
    }


def test_mapped_values_rename_tags() -> None:
    mapping = WORDS.model_copy(update={"values": {"tags": {"1": "B-per", "2": "I-per"}}})

    row = build_row(mapping, {"words": ["a", "b", "c"], "tags": [1, 2, 0]})
    assert row["tags"] == ["B-per", "I-per", "O"]  # type: ignore[typeddict-item] # of this kind


def test_scripts_without_spaces_are_joined() -> None:
    row = build_row(WORDS, {"words": [*"我在北京", "OK", "吗"], "tags": ["O"] * 6})

    assert row["text"] == "我在北京 OK 吗"  # type: ignore[typeddict-item] # of this kind


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, "unequal_lists"),
        ({"words": [], "tags": []}, "no_words"),
        ({"words": None, "tags": ["O"]}, "no_words"),
        ({"words": [" "], "tags": ["O"]}, "no_words"),
        ({"words": [["a"]], "tags": ["O"]}, "not_text"),
    ],
)
def test_bad_lists_are_refused(values: dict[str, Any], code: str) -> None:
    assert refusal(WORDS, values) == code


TEXT = "Ada Bell lives in Rome."
MARKED = ["B-per", "I-per", "O", "O", "B-town", "O"]


@pytest.mark.parametrize(
    "spans",
    [
        [{"start": 0, "end": 8, "label": "per"}, {"start": 18, "end": 22, "label": "town"}],
        [{"start_offset": 18, "end_offset": 22, "label": "town", "id": 3}, [0, 8, "per"]],
        [[0, 8, "per"], [18, 22, "town"]],
        "[(0, 8, 'per'), (18, 22, 'town')]",
        '[[0, 8, "per"], [18, 22, "town"]]',
        {"entities": [[0, 8, "per"], [18, 22, "town"]]},
        [
            {"start": 0, "end": 8, "text": "Ada Bell", "labels": ["per"]},
            {"value": {"start": 18, "end": 22, "labels": ["town"]}, "type": "labels"},
        ],
        [{"start": 0, "end": 9, "type": "per"}, {"start": 17, "end": 22, "entity_group": "town"}],
        [[0, 8, "per"], [0, 8, "per"], ["18", 22.0, "town"]],
    ],
    ids=[
        *("objects", "doccano", "triples", "python", "json", "spacy", "label studio"),
        *("with spaces", "repeated"),
    ],
)
def test_spans_are_read(spans: object) -> None:
    row = build_row(SPANS, {"text": TEXT, "spans": spans})

    assert row["tags"] == MARKED  # type: ignore[typeddict-item] # of this kind
    assert row["text"] == TEXT  # type: ignore[typeddict-item] # of this kind


def test_span_takes_the_words_that_it_touches() -> None:
    row = build_row(SPANS, {"text": TEXT, "spans": [[1, 5, "per"]]})

    assert row["tags"] == ["B-per", "I-per", "O", "O", "O", "O"]  # type: ignore[typeddict-item] # of this kind


@pytest.mark.parametrize("spans", [None, "", [], "[]"])
def test_text_may_have_no_entity(spans: object) -> None:
    assert set(build_row(SPANS, {"text": TEXT, "spans": spans})["tags"]) == {"O"}  # type: ignore[typeddict-item] # of this kind


@pytest.mark.parametrize(
    ("spans", "code"),
    [
        ([[0, 99, "x"]], "span_outside"),
        ([[-1, 3, "x"]], "span_outside"),
        ([[3, 3, "x"]], "span_outside"),
        ([[3, 4, "x"]], "span_outside"),
        ([[0, 8, "x"], [4, 8, "y"]], "overlapping_spans"),
        ([[0, 8, "x"], [0, 8, "y"]], "overlapping_spans"),
        ([{"start": 0, "end": 3, "labels": ["x", "y"]}], "overlapping_spans"),
        ([[0, 3]], "bad_spans"),
        ([["a", 3, "x"]], "bad_spans"),
        ([[0.5, 3, "x"]], "bad_spans"),
        ([{"start": 0, "end": 3}], "bad_spans"),
        ("Ada", "bad_spans"),
        (7, "bad_spans"),
    ],
)
def test_bad_spans_are_refused(spans: object, code: str) -> None:
    assert refusal(SPANS, {"text": TEXT, "spans": spans}) == code


def test_empty_text_is_refused() -> None:
    assert refusal(SPANS, {"text": " ", "spans": []}) == "no_text"


@pytest.mark.parametrize(
    "text",
    [
        "Ada NNP B-NP I-per\nlives VB B-VP O\nRome NNP B-NP I-town",
        "Ada\tB-per\nlives\tO\nRome\tB-town",
        "# id = 3 of\nAda _ _ B-per\nlives _ _ O\nRome _ _ U-town\n",
    ],
)
def test_lines_are_read(text: str) -> None:
    assert build_row(LINES, {"text": text}) == {
        "text": "Ada lives Rome",
        "words": ["Ada", "lives", "Rome"],
        "tags": ["B-per", "O", "B-town"],
    }


def test_lines_without_words_or_tags_are_refused() -> None:
    assert refusal(LINES, {"text": "-DOCSTART- -X- O O"}) == "document_start"
    assert refusal(LINES, {"text": "Ada B-per\nRome"}) == "no_tag"
    assert refusal(LINES, {"text": "# a comment"}) == "no_words"


def test_hash_that_is_a_word_is_no_comment() -> None:
    assert build_row(LINES, {"text": "# O\n5 O"})["words"] == ["#", "5"]  # type: ignore[typeddict-item] # of this kind


@pytest.mark.parametrize("filename", ["train.conll", "train.txt", "train.tsv", "train.csv"])
def test_conll_file_is_detected_and_read(bring: Convert, filename: str) -> None:
    """Sentences are separated by blank lines, documents by a line of their own."""
    sentence = "EU NNP B-NP I-ORG\nrejects VBZ B-VP O\n. . O O\n\n"
    result = bring("-DOCSTART- -X- -X- O\n\n" + sentence * 9, filename)

    assert result.problems[0] == ("document_start", 1, [1])
    assert len(result.rows) == 9
    assert result.rows[0]["tags"] == ["B-ORG", "O", "O"]


@pytest.mark.parametrize("kind", [{"_type": "List"}, {"_type": "Sequence"}])
def test_names_of_label_numbers_come_from_the_file(
    kind: dict[str, str], tmp_path: Path, bring: Convert
) -> None:
    """Hugging Face Datasets writes them into the schema, in the way of either version."""
    feature = {"feature": {"names": ["O", "B-per", "I-per"], "_type": "ClassLabel"}, **kind}
    metadata = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
    table = pa.table({"tokens": [["Ada", "Bell", "sat"]], "ner_tags": [[1, 2, 0]]})
    parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "rows.parquet")
    result = bring((tmp_path / "rows.parquet").read_bytes(), "rows.parquet")

    assert [row["tags"] for row in result.rows] == [["B-per", "I-per", "O"]]


@pytest.mark.parametrize("metadata", [None, {b"huggingface": b"{"}, {b"huggingface": b"[1]"}])
def test_files_without_names_have_none(metadata: dict[bytes, bytes] | None) -> None:
    assert read_label_names(metadata) == {}


def test_text_is_divided_at_its_entities() -> None:
    row = {"text": TEXT, "words": [TEXT[a:b] for a, b in split_words(TEXT)], "tags": MARKED}
    whole = [
        *(Segment("Ada Bell", "per"), Segment(" lives in "), Segment("Rome", "town")),
        Segment("."),
    ]

    assert split_segments(row) == whole
    assert split_segments(row, 20) == [*whole[:2], Segment("Ro", "town")]
    assert split_segments(row, 5) == [Segment("Ada B", "per")]
