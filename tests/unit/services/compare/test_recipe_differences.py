"""In which settings runs differ."""

from sqlmodel import Session

from studio.services.compare import compare
from tests.support.factories import make_run


def test_explicit_settings_are_not_marked_as_default(db: Session) -> None:
    runs = [make_run(db, precision=name) for name in ("bf16", "fp32")]
    (found,) = (one for one in compare.diff_recipes(runs) if one.key == "precision")

    assert (found.values, found.defaults, found.differs) == (["bf16", "fp32"], [False, False], True)


def test_required_settings_are_never_marked_as_default(db: Session) -> None:
    (found,) = (one for one in compare.diff_recipes([make_run(db)]) if one.key == "base_model")

    assert found.defaults == [False]


def test_differences_are_grouped_by_section(db: Session) -> None:
    runs = [make_run(db, precision="fp32", optimisation={"seed": 1}), make_run(db)]
    differing = [one for one in compare.diff_recipes(runs) if one.differs]
    sections = compare.group_by_section(differing)

    assert {name: [one.key for one in rows] for name, rows in sections.items()} == {
        "": ["precision"],
        "optimisation": ["optimisation.seed"],
    }


def test_setting_missing_in_some_runs_counts_as_different(db: Session) -> None:
    runs = [make_run(db), make_run(db, adapter={"kind": "full"})]
    (rank,) = (one for one in compare.diff_recipes(runs) if one.key == "adapter.r")

    assert (rank.values[1], rank.defaults[1], rank.differs) == (None, False, True)
