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


def test_file_names_assign_train_and_validation_splits(bring: Convert) -> None:
    result = bring(ARCHIVE, "rows.zip")

    assert answers(result) == (["a", "b"], ["v"])
    assert result.converted.removed == {"other_part": 1}


def test_detection_evidence_lists_splits_by_file_name(tmp_path: Path) -> None:
    path = tmp_path / "uploaded"
    path.write_bytes(ARCHIVE)

    found = inspect_file(SourceFile(path=path, filename="rows.zip"), Limits()).detected

    assert found.mapping.split == Split(kind="file")
    assert found.evidence[-2:] == [
        "Used for validation, by file name: valid/1.jsonl.",
        "Left out as test data, by file name: test.jsonl.",
    ]


def test_problem_places_use_line_numbers_within_archive_files(bring: Convert) -> None:
    (problem,) = bring(ARCHIVE, "rows.zip").converted.problems

    assert (problem.rows, problem.places) == ([2, 5], ["2 of train.jsonl", "2 of valid/1.jsonl"])


def test_bad_rows_error_lists_line_and_file_in_archive(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(zipped({"a.jsonl": rows("", ""), "b.jsonl": rows("")}), "rows.zip", mapping())

    assert refused.value.message == (
        "None of the rows can be used. Lines 1 of a.jsonl, 2 of a.jsonl, 1 of b.jsonl: The "
        "answer is missing or empty."
    )


def test_exclude_uses_row_numbers_across_whole_archive(bring: Convert) -> None:
    archive = zipped({"a.jsonl": rows("a", "b"), "b.jsonl": rows("c", "d")})

    result = bring(archive, "rows.zip", mapping(exclude=[3]))

    assert answers(result) == (["a", "b", "d"], [])


def test_mapping_without_split_trains_on_all_archive_files(bring: Convert) -> None:
    result = bring(ARCHIVE, "rows.zip", mapping())

    assert answers(result) == (["a", "b", "v", "t"], [])


def test_share_split_ignores_file_names(bring: Convert) -> None:
    result = bring(ARCHIVE, "rows.zip", mapping(split={"kind": "share", "share": 0.5}))

    learnt, held = answers(result)
    assert sorted(learnt + held) == ["a", "b", "t", "v"]


def test_threads_stay_in_split_of_their_file(bring: Convert) -> None:
    def thread(number: int) -> bytes:
        turns = [
            {"id": f"{number}q", "parent_id": None, "role": "prompter", "text": "Who?"},
            {"id": f"{number}a", "parent_id": f"{number}q", "role": "assistant", "text": "Me."},
        ]
        return "".join(json.dumps(turn) + "\n" for turn in turns).encode()

    result = bring(zipped({"dev.jsonl": thread(1), "train.jsonl": thread(2)}), "rows.zip")

    assert result.converted.mapping.shape == "thread"
    assert (result.converted.rows, result.converted.validation_rows) == (1, 1)


def test_preview_uses_same_order_and_splits_as_training(tmp_path: Path) -> None:
    path = tmp_path / "uploaded"
    path.write_bytes(ARCHIVE)
    source = SourceFile(path=path, filename="rows.zip")

    shown = preview_rows(source, mapping(split={"kind": "file"}), Limits(), 6)
    sought = file_preview.find_rows(source, Limits(), {5})

    assert [one.place for one in shown[2:4]] == ["3 of train.jsonl", "1 of valid/1.jsonl"]
    assert [one.part for one in shown] == ["train", None, "train", "validation", None, None]
    assert [(row.number, row.place) for row in sought.rows] == [(5, "2 of valid/1.jsonl")]
