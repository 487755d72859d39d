"""How well a tagger finds the entities of each label."""

from studio.db.tables import Run
from studio.protocols.entity_reports import ENTITY_REPORTS, EntityReport
from studio.protocols.report_files import of_model
from studio.protocols.run_dir import RunDir


def load(run: Run, folder: RunDir) -> EntityReport | None:
    """Return the report of the weights that the run has; None if it finds no entities."""
    reports = ENTITY_REPORTS.read(folder) if run.recipe.outputs == "entities" else []
    return of_model(reports, keeps_best=run.recipe.keeps_best_model)
