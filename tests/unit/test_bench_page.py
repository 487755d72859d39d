import subprocess
from pathlib import Path

import pytest

from tests.bench import page, record
from tests.bench.measurement import Measurement
from tests.bench.record import Record

FIRST = [Measurement("page", 0.7, "s"), Measurement("  cold over warm", 4.0, "x")]
LATER = [Measurement("page", 0.35, "s"), Measurement("new figure", 1234.5, "tokens/s")]


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    for commit, day, figures in (("b1", "2026-11-01", FIRST), ("a2", "2026-11-02", LATER)):
        one = Record(commit, day)
        one.add("run_start", "2 cores", figures)
        record.save(one, tmp_path)
    return record.load_all(tmp_path)


def test_figures_are_read_as_they_were_kept(records: list[Record], tmp_path: Path) -> None:
    assert [one.commit for one in records] == ["b1", "a2"]
    assert record.load("b1", tmp_path).parts == {"run_start": FIRST}
    assert record.load("c3", tmp_path).parts == {}


def test_part_that_is_measured_again_replaces_only_itself(tmp_path: Path) -> None:
    one = Record("b1", "2026-11-01")
    one.add("run_start", "2 cores", FIRST)
    one.add("idle", "2 cores", FIRST)
    one.add("idle", "8 cores", LATER)
    record.save(one, tmp_path)

    kept = record.load("b1", tmp_path)
    assert kept.parts == {"run_start": FIRST, "idle": LATER}
    assert kept.machines == {"run_start": "2 cores", "idle": "8 cores"}


def test_page_shows_newest_figures_beside_earlier_ones(records: list[Record]) -> None:
    text = page.write_page(records)

    assert "## Run start\n\nMeasured on: 2 cores\n" in text
    assert "| | a2, 2026-11-02 | b1, 2026-11-01 |" in text
    assert "| page | 0.350 s | 0.700 s |" in text
    assert "| new figure | 1,234 tokens/s |  |" in text
    assert "cold over warm" not in text, "the newest commit does not measure it any more"


def test_bars_are_as_long_as_their_ratios() -> None:
    ratios = [Measurement("ours < theirs", 2.0, "x"), Measurement("half", 0.5, "x")]

    drawn = page.draw(ratios)

    assert "ours &lt; theirs" in drawn
    widths = [float(part.split('"')[0]) for part in drawn.split('width="')[1:]]
    assert widths[0] == pytest.approx(4 * widths[1])


def test_figures_of_changed_files_belong_to_no_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        command = ["git", *who, *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "code.py").write_text("1")
    (tmp_path / "bench").mkdir()
    git("init")
    git("add", ".")
    git("commit", "--message", "One")
    commit = record.current_commit(tmp_path)
    assert commit
    (tmp_path / "bench" / "figures.json").write_text("{}")
    assert record.current_commit(tmp_path) == commit

    (tmp_path / "code.py").write_text("2")
    assert record.current_commit(tmp_path) is None
