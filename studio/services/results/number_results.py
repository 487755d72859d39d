"""How near the model of a run comes to the numbers that it learned."""

from studio.db.tables import Run
from studio.protocols.number_reports import NUMBER_REPORTS, NumberReport
from studio.protocols.report_files import of_model
from studio.protocols.run_dir import RunDir


def load(run: Run, folder: RunDir) -> NumberReport | None:
    """Return the report of the weights that the run has; None if it gives no numbers."""
    reports = NUMBER_REPORTS.read(folder) if run.recipe.outputs == "number" else []
    return of_model(reports, keeps_best=run.recipe.keeps_best_model)
