"""Archives whose files are named for learning and measuring: what is seen in them, and kept."""

import json
from pathlib import Path

import pytest

from studio.errors import InvalidError
from studio.intake.conversion import file_preview
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.conversion.file_preview import preview_rows
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping, Split
from tests.unit.intake.conftest import Convert, Result, zipped

ROLES = {"prompt": ["prompt"], "completion": ["completion"]}


def rows(*answers: str) -> bytes:
    return "".join(
        json.dumps({"prompt": "Who?", "completion": one}) + "\n" for one in answers
    ).encode()


ARCHIVE = zipped(
    {"test.jsonl": rows("t"), "train.jsonl": rows("a", "", "b"), "valid/1.jsonl": rows("v", "")}
)


def answers(result: Result) -> tuple[list[str], list[str]]:
    learnt, held = (
        [row["messages"][-1]["content"] for row in part] for part in (result.rows, result.held)
    )
    return learnt, held


def mapping(**changes: object) -> Mapping:
    return Mapping.model_validate({"shape": "prompt_completion", "roles": ROLES} | changes)


def test_files_are_learnt_from_and_measured_by_as_they_are_named(bring: Convert) -> None:
    result = bring(ARCHIVE, "rows.zip")

    assert answers(result) == (["a", "b"], ["v"])
    assert result.converted.removed == {"other_part": 1}


def test_what_the_names_say_is_told(tmp_path: Path) -> None:
    path = tmp_path / "uploaded"
    path.write_bytes(ARCHIVE)

    found = inspect_file(SourceFile(path=path, filename="rows.zip"), Limits()).detected

    assert found.mapping.split == Split(kind="file")
    assert found.evidence[-2:] == [
        "Used for validation, by file name: valid/1.jsonl.",
        "Left out as test data, by file name: test.jsonl.",
    ]


def test_a_place_names_the_file_and_its_own_count(bring: Convert) -> None:
    (problem,) = bring(ARCHIVE, "rows.zip").converted.problems

    assert (problem.rows, problem.places) == ([2, 5], ["2 of train.jsonl", "2 of valid/1.jsonl"])


def test_a_file_of_nothing_but_bad_rows_is_told_by_the_places_in_its_files(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(zipped({"a.jsonl": rows("", ""), "b.jsonl": rows("")}), "rows.zip", mapping())

    assert refused.value.message == (
        "None of the rows can be used. Lines 1 of a.jsonl, 2 of a.jsonl, 1 of b.jsonl: The "
        "answer is missing or empty."
    )


def test_a_row_is_excluded_by_its_number_in_the_archive_alone(bring: Convert) -> None:
    archive = zipped({"a.jsonl": rows("a", "b"), "b.jsonl": rows("c", "d")})

    result = bring(archive, "rows.zip", mapping(exclude=[3]))

    assert answers(result) == (["a", "b", "d"], [])


def test_all_files_are_learnt_from_where_one_chooses_so(bring: Convert) -> None:
    result = bring(ARCHIVE, "rows.zip", mapping())

    assert answers(result) == (["a", "b", "v", "t"], [])


def test_names_do_not_count_where_rows_are_parted_otherwise(bring: Convert) -> None:
    result = bring(ARCHIVE, "rows.zip", mapping(split={"kind": "share", "share": 0.5}))

    learnt, held = answers(result)
    assert sorted(learnt + held) == ["a", "b", "t", "v"]


def test_threads_stay_on_the_side_of_their_file(bring: Convert) -> None:
    def thread(number: int) -> bytes:
        turns = [
            {"id": f"{number}q", "parent_id": None, "role": "prompter", "text": "Who?"},
            {"id": f"{number}a", "parent_id": f"{number}q", "role": "assistant", "text": "Me."},
        ]
        return "".join(json.dumps(turn) + "\n" for turn in turns).encode()

    result = bring(zipped({"dev.jsonl": thread(1), "train.jsonl": thread(2)}), "rows.zip")

    assert result.converted.mapping.shape == "thread"
    assert (result.converted.rows, result.converted.validation_rows) == (1, 1)


def test_what_is_shown_first_is_what_is_learnt(tmp_path: Path) -> None:
    path = tmp_path / "uploaded"
    path.write_bytes(ARCHIVE)
    source = SourceFile(path=path, filename="rows.zip")

    shown = preview_rows(source, mapping(split={"kind": "file"}), Limits(), 6)
    sought = file_preview.find_rows(source, Limits(), {5})

    assert [one.place for one in shown[2:4]] == ["3 of train.jsonl", "1 of valid/1.jsonl"]
    assert [one.part for one in shown] == ["train", None, "train", "validation", None, None]
    assert [(row.number, row.place) for row in sought.rows] == [(5, "2 of valid/1.jsonl")]
