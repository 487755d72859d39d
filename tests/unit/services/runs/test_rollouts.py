"""Read the answers that a run learned from, while it writes them."""

import time
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from studio.protocols.rollouts import AnswerRecord, GroupRecord, Stage, read_place
from studio.protocols.run_dir import RunDir
from studio.services.runs import rollouts
from studio.services.runs.rollouts import Order, RolloutIndex
from studio.settings import Settings
from studio.training.rollouts.records import RolloutLog
from studio.worker.processes import run_dir_setup
from tests.support.factories import make_run


def answer(reward: float | None, **changes: Any) -> AnswerRecord:  # noqa: ANN401 -- any field
    values: dict[str, Any] = {
        "text": f"scored {reward}",
        "parts": {},
        "messages": [],
        "tokens": 3,
        "is_cut_off": False,
    }
    return AnswerRecord(reward=reward, **values | changes)


def group(
    step: int, row: int = 1, stage: Stage = "training", *answers: AnswerRecord
) -> GroupRecord:
    made = list(answers) or [answer(0.5)]
    return GroupRecord(step=step, stage=stage, row=row, prompt=f"Row {row}", answers=made)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def steps(index: RolloutIndex, stage: Stage = "training") -> list[tuple[int, int]]:
    return [(step.number, step.prompts) for step in index.list_steps(stage)]


def rows(index: RolloutIndex, step: int, stage: Stage = "training") -> list[int]:
    found = index.list_steps(stage)
    return [
        record.row
        for record in rollouts.read_groups(index.path, found[rollouts.nearest(found, step)])
    ]


def test_line_begins_with_its_place() -> None:
    assert read_place(group(12, stage="validation").to_line().encode()) == ("validation", 12)
    assert read_place(b'{"stage": "training", "step": 12}\n') is None


def test_file_that_does_not_exist_yet_has_no_steps(path: Path) -> None:
    index = RolloutIndex(path)

    assert steps(index) == []
    assert index.find_end() == 0


def test_index_follows_a_growing_file(path: Path) -> None:
    log, index = RolloutLog(path), RolloutIndex(path)
    log.append([group(0, 1, "validation"), group(0, 2, "validation")])
    log.append([group(1, 3), group(1, 4)])
    before = steps(index), steps(index, "validation")
    log.append([group(1, 5), group(2, 6)])

    assert before == ([(1, 2)], [(0, 2)])
    assert steps(index) == [(1, 3), (2, 1)]
    assert [rows(index, 1), rows(index, 2), rows(index, 0, "validation")] == [
        [3, 4, 5],
        [6],
        [1, 2],
    ]


def test_half_a_line_waits_for_its_rest(path: Path) -> None:
    index, line = RolloutIndex(path), group(2, 7).to_line()
    path.write_text(group(1, 1).to_line() + line[:40])
    before = steps(index)
    with path.open("a") as file:
        file.write(line[40:])

    assert before == [(1, 1)]
    assert steps(index) == [(1, 1), (2, 1)]
    assert rows(index, 2) == [7]


def test_lines_that_are_no_records_are_left_out(path: Path) -> None:
    path.write_text(f"\x00\x00\n{group(1, 1).to_line()}{{}}\n{group(2, 2).to_line()}")

    assert steps(RolloutIndex(path)) == [(1, 1), (2, 1)]


def test_resumed_run_writes_its_last_steps_again(path: Path) -> None:
    log, index = RolloutLog(path), RolloutIndex(path)
    log.append(group(step, row) for step in (1, 2, 3) for row in (1, 2))
    assert steps(index) == [(1, 2), (2, 2), (3, 2)]
    log.cut(1)
    cut = steps(index)
    log.append(group(step, row) for step in (2, 3, 4) for row in (3, 4))

    assert cut == [(1, 2)]
    assert steps(index) == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert [rows(index, 1), rows(index, 2)] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_replaced_file_is_read_again(count: int, path: Path) -> None:
    """Whether or not it is longer than the one before."""
    log, index = RolloutLog(path), RolloutIndex(path)
    log.append([group(1, 1), group(2, 2)])
    assert steps(index) == [(1, 1), (2, 1)]
    log.cut(-1)
    log.append(group(5, row) for row in range(count))

    assert steps(index) == [(5, count)]


def test_deleted_file_is_forgotten(path: Path) -> None:
    index = RolloutIndex(path)
    RolloutLog(path).append([group(1)])
    (step,) = index.list_steps("training")
    path.unlink()

    assert steps(index) == []
    assert rollouts.read_groups(path, step) == []


def test_step_written_twice_counts_once(path: Path) -> None:
    RolloutLog(path).append([group(2, 1, "validation"), group(3, 2), group(2, 3, "validation")])

    assert steps(RolloutIndex(path), "validation") == [(2, 1)]
    assert rows(RolloutIndex(path), 2, "validation") == [3]


@pytest.mark.parametrize(("lines", "count"), [(3, 3), (3.5, 3), (0.1, 1)])
def test_only_the_beginning_of_a_huge_step_is_read(lines: float, count: int, path: Path) -> None:
    RolloutLog(path).append(group(1, row) for row in range(10))
    (step,) = RolloutIndex(path).list_steps("training")
    most = int(lines * len(group(1, 0).to_line()))

    assert len(rollouts.read_groups(path, step, most)) == count


def test_long_run_is_indexed_in_seconds_and_then_at_once(path: Path) -> None:
    lines, line = 100_000, group(7).to_line()
    path.write_text("".join(line.replace("7", str(number // 8), 1) for number in range(lines)))
    index = RolloutIndex(path)
    began = time.process_time()
    count = len(index.list_steps("training"))
    first = time.process_time() - began
    RolloutLog(path).append([group(lines)])
    began = time.process_time()
    more = len(index.list_steps("training"))

    assert (count, more) == (lines // 8, lines // 8 + 1)
    assert first < 10
    assert time.process_time() - began < first / 5


@pytest.mark.parametrize(
    ("order", "texts"),
    [
        ("row", [["b", "a"], ["d", "c"]]),
        ("best", [["c", "d"], ["b", "a"]]),
        ("worst", [["a", "b"], ["d", "c"]]),
        ("longest", [["d", "c"], ["a", "b"]]),
    ],
)
def test_prompts_and_their_answers_are_sorted(order: Order, texts: list[list[str]]) -> None:
    records = [
        group(1, 1, "training", answer(0.5, text="b", tokens=1), answer(None, text="a", tokens=4)),
        group(1, 2, "training", answer(0.1, text="d", tokens=9), answer(0.9, text="c", tokens=5)),
    ]

    found = rollouts.sort_groups(records, order)

    assert [[one.text for one in one_group.answers] for one_group in found] == texts


def test_group_compares_its_answers() -> None:
    differing, alike, single = (
        rollouts.sort_groups([group(1, 1, "training", *map(answer, rewards))], "row")[0]
        for rewards in ((0.2, None, 0.6), (0.5, 0.5), (0.5, None))
    )

    assert differing.mean == pytest.approx(0.4)
    assert [one.is_flat for one in (differing, alike, single)] == [False, True, False]


@pytest.mark.parametrize(("number", "place"), [(None, 2), (0, 0), (3, 0), (7, 1), (10, 2), (99, 2)])
def test_nearest_step_is_the_last_one_up_to_a_number(
    number: int | None, place: int, path: Path
) -> None:
    RolloutLog(path).append(group(step) for step in (1, 5, 10))

    assert rollouts.nearest(RolloutIndex(path).list_steps("training"), number) == place


@pytest.mark.parametrize(("resumes", "count"), [(True, 1), (False, 0)])
def test_restarted_run_forgets_its_answers(
    resumes: bool,  # noqa: FBT001 -- a parameter of the test
    count: int,
    db: Session,
    settings: Settings,
    tmp_path: Path,
) -> None:
    run, folder = make_run(db, method="grpo"), RunDir(tmp_path / "run")
    folder.root.mkdir()
    RolloutLog(folder.rollouts).append([group(1)])
    run.resumes = resumes

    run_dir_setup.write_run_dir(db, run, folder, settings)

    assert len(RolloutIndex(folder.rollouts).list_steps("training")) == count
