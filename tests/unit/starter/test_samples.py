"""The included samples: complete, always the same, and read as what they are for."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from studio.intake.conversion.converter import SourceFile
from studio.intake.conversion.job import detect_file
from studio.intake.files.limits import Limits
from studio.starter import samples
from studio.starter.samples import SAMPLES, SampleName


def rows(name: SampleName, folder: Path) -> list[dict[str, Any]]:
    samples.write(name, folder / "rows.jsonl")
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_chosen_and_rejected_answers_differ(tmp_path: Path) -> None:
    found = rows("comparisons", tmp_path)

    assert len(found) > 2000
    assert all(row["chosen"] != row["rejected"] for row in found)
    assert all(all(row.values()) for row in found)


def test_half_of_the_ratings_are_good(tmp_path: Path) -> None:
    labels = [row["label"] for row in rows("ratings", tmp_path)]

    assert abs(2 * sum(labels) - len(labels)) <= 1


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_the_same_each_time(name: SampleName, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()

    assert rows(name, tmp_path) == rows(name, tmp_path / "again")


def test_labels_are_a_few_of_many_rows_each(tmp_path: Path) -> None:
    counts = Counter(row["label"] for row in rows("labels", tmp_path))

    assert len(counts) == 13
    assert min(counts.values()) > 50
    assert counts["find a fact"] < 300


def test_numbers_are_lengths_of_answers(tmp_path: Path) -> None:
    found = {row["number"] for row in rows("numbers", tmp_path)}

    assert found == {1, 3, 4, 5, 6, 7, 8, 9, 10}


def test_people_towns_and_dates_are_marked(tmp_path: Path) -> None:
    found = rows("entities", tmp_path)
    marked = Counter(entity["label"] for row in found for entity in row["entities"])
    words = {row["text"][one["start"] : one["end"]] for row in found for one in row["entities"]}

    assert min(marked[label] for label in ("person", "town", "date")) >= 200
    assert {"Laila", "Ghent", "11 March 1980"} <= words
    assert sum(not row["entities"] for row in found) > 500


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("comparisons", "preference"),
        ("ratings", "judged"),
        ("labels", "classification"),
        ("numbers", "regression"),
        ("entities", "spans"),
    ],
)
def test_columns_are_detected(name: SampleName, shape: str, tmp_path: Path) -> None:
    samples.write(name, tmp_path / "rows.jsonl")
    source = SourceFile(path=tmp_path / "rows.jsonl", filename=samples.filename(name))

    assert detect_file(source, Limits()).detected["mapping"]["shape"] == shape
