"""What the address of a comparison says."""

from sqlmodel import Session

from studio.services.compare import compare
from studio.services.runs import attempts
from studio.web.compare.comparison_url import ComparisonQuery, parse_query, runs_outside_brush
from tests.support.factories import make_running, metrics_event


def test_comparison_url_round_trips() -> None:
    said = "runs=1,2&base=2&x=tokens&y=log&smooth=0.9&clip=1&m=loss,eval_loss&group=seed&hide=2"

    assert parse_query(said).query() == said


def test_metrics_can_be_given_as_repeated_parameters() -> None:
    assert parse_query("runs=1&m=loss&m=eval_loss").m == ["loss", "eval_loss"]


def test_default_values_are_omitted_from_url() -> None:
    assert ComparisonQuery(runs=[1, 2]).url == "/compare?runs=1,2"


def test_axis_range_needs_two_numbers() -> None:
    assert [ComparisonQuery(zoom=said).x_range for said in ("1..2.5", "1", "a..b", "")] == [
        (1.0, 2.5),
        None,
        None,
        None,
    ]


def test_brush_filters_runs_by_metric_and_setting(db: Session) -> None:
    for precision, loss in (("bf16", 1.0), ("fp32", 2.0), ("fp16", 3.0)):
        run = make_running(db, precision=precision)
        attempts.apply_events(db, run, [metrics_event(1, loss=loss)], 1)
    made = compare.compare(db, [1, 2, 3])

    assert runs_outside_brush(made, "loss:1..2.5") == {3}
    assert runs_outside_brush(made, "loss:1..2.5;precision:fp32|fp16") == {1, 3}
    assert runs_outside_brush(made, "") == set()
