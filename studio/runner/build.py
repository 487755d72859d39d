"""Read a large file whole: its rows, as canonical ones, in the chore's folder."""

import shutil
from typing import Any

from studio.chores import ChoreDir
from studio.intake.reading import CONVERTED, READ, READING
from studio.runner.chores import Tell
from studio.runner.parts import safe


def build(folder: ChoreDir, params: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Do the reading in `params["reading"]`. Return where its rows are, and what they are."""
    rows = folder.files / "rows"
    shutil.rmtree(rows, ignore_errors=True)
    rows.mkdir()
    made = READING.validate_python(params["reading"]).write(
        rows, lambda share: tell(_phase(share), share)
    )
    safe(rows)
    return {"rows": str(rows), "converted": CONVERTED.dump_python(made, mode="json")}


def _phase(share: float) -> str:
    return "reading the rows" if share < READ else "looking through the rows"
