"""Options of forms: precisions on this machine, models and datasets."""

from dataclasses import dataclass

from sqlmodel import Session, col, select

from studio.db.tables import Run
from studio.hardware import Hardware
from studio.recipe.precision import PRECISIONS, Precision
from studio.services.datasets import datasets, versions
from studio.services.models import models
from studio.services.search import query_fields
from studio.web.i18n import formatting
from studio.web.i18n.locale import gettext, ngettext

_RECENT_RUNS = 20
"""How many of the newest runs to check for a model that still exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionOption:
    """A precision, and how it works on this machine."""

    mode: Precision
    unavailable_reason: str
    """Why it cannot be chosen here, or empty."""
    warning: str
    """What to know before choosing it here, or empty."""


def precision_options(hardware: Hardware) -> list[PrecisionOption]:
    return [
        PrecisionOption(
            mode=mode,
            unavailable_reason=mode.unsupported_reason(hardware),
            warning=mode.warning(hardware),
        )
        for mode in PRECISIONS.values()
    ]


def model_names(db: Session) -> list[str]:
    return [model.name for model in models.newest(db)]


def default_base_model(db: Session, dataset: str) -> tuple[str, str]:
    """Return the model that tokenizes a dataset's rows by default, and why that one.

    It is the base model of the newest run on the dataset, else the newest model that no run made:
    a fine-tuned model would be a guess, and is used only if it is chosen. Empty if there is none.
    """
    all_models = models.newest(db)
    names = {model.name for model in all_models}
    query = select(Run).where(query_fields.recipe_fields()["dataset"].value == dataset)
    for run in db.exec(query.order_by(col(Run.id).desc()).limit(_RECENT_RUNS)):
        if run.recipe.base_model in names:
            reason = gettext("The base model of run #%(run)s, the newest on this dataset.")
            return run.recipe.base_model, reason % {"run": run.id}
    base = next((model.name for model in all_models if model.kind != "run"), "")
    reason = gettext("The newest base model here: no run has used this dataset.")
    return base, reason if base else ""


def dataset_options(db: Session, chosen: str) -> list[tuple[str, str]]:
    """Return each dataset's name with a label, including the chosen one if it is missing."""
    all_datasets = datasets.newest(db)
    rows = {
        number: item.train_rows
        for number, item in versions.current_by_dataset(db, all_datasets).items()
    }
    labels = {
        item.name: f"{item.name} ({_row_count(rows[item.id])})"
        for item in all_datasets
        if item.id in rows
    }
    options = (
        labels
        if not chosen or chosen in labels
        else {chosen: gettext("%(name)s (missing)") % {"name": chosen}} | labels
    )
    return list(options.items())


def _row_count(rows: int) -> str:
    return ngettext("%(rows)s row", "%(rows)s rows", rows) % {"rows": formatting.number(rows)}
