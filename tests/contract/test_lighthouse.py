"""What `make lighthouse` judges: its figures against its goals, and which Node it may run on."""

from pathlib import Path
from typing import Any

import pytest

from tests.bench.lighthouse import GOALS, Visit, below_goal, is_new_enough, visits

PAGE = Visit("/new", "desktop")


def report_with(performance: float, accessibility: float) -> dict[str, Any]:
    scores = {"performance": performance, "accessibility": accessibility}
    return {
        "categories": {
            name: {"score": score, "auditRefs": [{"id": f"fault-of-{name}", "weight": 1}]}
            for name, score in scores.items()
        },
        "audits": {f"fault-of-{name}": {"score": score} for name, score in scores.items()},
    }


def test_page_that_reaches_every_goal_is_not_reported() -> None:
    assert list(below_goal(PAGE, report_with(GOALS["performance"] / 100, 1))) == []


def test_page_below_a_goal_is_reported_with_its_faults() -> None:
    assert list(below_goal(PAGE, report_with(1, 0.89))) == [
        "/new, desktop: accessibility 89, below 100: fault-of-accessibility"
    ]


def test_slow_page_fails_on_desktops_but_not_on_phones() -> None:
    slow = report_with(0.5, 1)

    assert [len([*below_goal(Visit("/new", form), slow)]) for form in ("desktop", "mobile")] == [
        1,
        0,
    ]


def test_each_page_has_a_report_of_its_own() -> None:
    reports = {visit.report for visit in visits()}

    assert len(reports) == len(visits())


@pytest.mark.parametrize(
    ("version", "is_accepted"),
    [("v22.19.0", True), ("v24.0.1", True), ("v20.20.2", False), ("", False)],
)
def test_only_new_enough_node_is_used(tmp_path: Path, version: str, is_accepted: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho {version}\n")
    node.chmod(0o755)

    assert is_new_enough(str(node)) is is_accepted


def test_missing_node_is_not_new_enough(tmp_path: Path) -> None:
    assert not is_new_enough(None)
    assert not is_new_enough(str(tmp_path / "node"))
