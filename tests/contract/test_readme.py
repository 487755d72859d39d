"""The README lists every goal that the form offers."""

import re
from pathlib import Path

from studio.methods import METHODS

README = Path(__file__).parents[2] / "README.md"


def test_readme_lists_every_goal_in_order() -> None:
    table = README.read_text("utf-8").partition("## What it teaches")[2].partition("\n## ")[0]
    goals = re.findall(r"^\| (Learn [^|]+?) \|", table, re.MULTILINE)

    assert goals == [method.purpose for method in METHODS.values()]
