"""Read a large file whole: its rows, as canonical ones, in the chore's folder."""

import shutil
from typing import Any

from studio.chores import ChoreDir
from studio.intake.reading import CONVERTED, READING
from studio.runner.chores import Tell


def build(folder: ChoreDir, params: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Do the reading in `params["reading"]`. Return where its rows are, and what they are."""
    rows = folder.files / "rows"
    shutil.rmtree(rows, ignore_errors=True)
    rows.mkdir()
    made = READING.validate_python(params["reading"]).write(
        rows, lambda share: tell("reading the rows", share)
    )
    return {"rows": str(rows), "converted": CONVERTED.dump_python(made, mode="json")}
