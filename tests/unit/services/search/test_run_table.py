"""The table of runs: its order, its pages, its columns, and its groups."""

import pytest
from sqlmodel import Session

from studio.services.runs import attempts
from studio.services.search import run_table
from studio.services.search.run_table import TableView
from tests.support.factories import make_run, make_running, metrics_event


@pytest.fixture
def losses(db: Session) -> list[float | None]:
    """Make runs that ended at these losses, some at none."""
    values = [0.5, None, 0.25, 0.5, None, 0.75]
    for i, value in enumerate(values):
        run = make_running(db, f"run {i}", precision=("fp32", "bf16")[i % 2])
        if value is not None:
            told = [metrics_event(1, eval_loss=1 - value), metrics_event(2, eval_loss=value)]
            attempts.apply_events(db, run, told, 1)
    return values


@pytest.mark.parametrize(
    ("sort", "ids"),
    [
        ("-created", [6, 5, 4, 3, 2, 1]),
        ("created", [1, 2, 3, 4, 5, 6]),
        ("eval_loss", [3, 1, 4, 6, 2, 5]),
        ("-eval_loss", [6, 4, 1, 3, 5, 2]),
        ("eval_loss.best", [3, 6, 1, 4, 2, 5]),
        ("-precision", [5, 3, 1, 6, 4, 2]),
    ],
)
def test_pages_cover_all_runs_in_any_sort_order(
    db: Session, losses: list[float | None], sort: str, ids: list[int]
) -> None:
    assert len(losses) == 6
    found: list[int] = []
    more, after = True, None
    while more:
        page = run_table.load_page(db, TableView(sort=sort), limit=2, after=after)
        found += [line.run.id or 0 for line in page.lines]
        more, after = page.has_more, found[-1]

    assert (found, page.total) == (ids, 6)


def test_new_run_does_not_shift_pages(db: Session, losses: list[float | None]) -> None:
    assert len(losses) == 6
    run_table.load_page(db, TableView(), limit=2)
    make_run(db, "newest")
    second = run_table.load_page(db, TableView(), limit=2, after=5)

    assert [line.run.id for line in second.lines] == [4, 3]


def test_table_shows_name_and_valid_chosen_columns(db: Session) -> None:
    attempts.apply_events(db, make_running(db, "one"), [metrics_event(1, luck=4.0)], 1)
    view = TableView(columns=("luck.max", "adapter.r", "name", "unheard.of", "luck.best"))
    page = run_table.load_page(db, view, limit=9)

    assert [one.name for one in page.columns] == ["name", "luck.max", "adapter.r"]
    assert [page.lines[0].value(one) for one in page.columns] == ["one", 4.0, 16]


def test_groups_report_count_mean_and_deviation(db: Session, losses: list[float | None]) -> None:
    assert len(losses) == 6
    grouped = run_table.group_runs(db, TableView(group="precision", columns=("eval_loss",)))

    assert grouped is not None
    told = {one.value: (one.count, one.term, one.spreads["eval_loss"]) for one in grouped.groups}
    assert told["fp32"][:2] == (3, "precision:fp32")
    assert told["fp32"][2].n == 2
    assert told["fp32"][2].mean == pytest.approx(0.375)
    assert told["fp32"][2].deviation == pytest.approx(0.1767766953)
    assert told["bf16"][2].mean == pytest.approx(0.625)


@pytest.mark.parametrize("group", ["precision", "learning_rate", "adapter.r", "name", "eval_loss"])
def test_group_term_finds_its_runs(db: Session, losses: list[float | None], group: str) -> None:
    assert len(losses) == 6
    make_run(db, 'an "odd" name', adapter={"kind": "full"})
    grouped = run_table.group_runs(db, TableView(group=group))

    assert grouped is not None
    assert grouped.total == 7
    counts = [
        run_table.load_page(db, TableView(query=one.term), limit=1).total
        for one in grouped.groups
        if '"odd"' not in str(one.value)
    ]
    assert counts == [one.count for one in grouped.groups if '"odd"' not in str(one.value)]


def test_groups_are_sorted_by_mean_of_column(db: Session, losses: list[float | None]) -> None:
    assert len(losses) == 6
    orders = []
    for sort in ("eval_loss", "-eval_loss"):
        grouped = run_table.group_runs(db, TableView(group="precision", sort=sort))
        orders.append([one.value for one in grouped.groups] if grouped else [])

    assert orders == [["fp32", "bf16"], ["bf16", "fp32"]]
