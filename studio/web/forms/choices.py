"""Options of forms: precisions on this machine, models and datasets."""

from dataclasses import dataclass

from sqlmodel import Session, col, select

from studio.db.tables import Dataset, DatasetVersion, Run
from studio.errors import StudioError
from studio.hardware import Hardware
from studio.intake.detection.row_shapes import KIND_NAMES
from studio.methods.base import Method
from studio.recipe.precision import PRECISIONS, Precision
from studio.services.datasets import data_quality, datasets, versions
from studio.services.estimates import model_catalogue
from studio.services.models import models
from studio.services.precision import recommendation
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


def is_trainable(db: Session, model: str, method: Method) -> bool:
    """Whether a method can train a base model, as far as its config tells."""
    known = model_catalogue.find_known(db, None, model)
    try:
        family = known.family if known else recommendation.load_model_facts(db, model).family
    except StudioError:  # The form says so in its own place.
        return True
    return model_catalogue.is_trainable(family, method)


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


def dataset_options(db: Session, chosen: str, method: Method) -> list[tuple[str, str]]:
    """Return each dataset's name with a label, including the chosen one if it is missing.

    Datasets that the method cannot train on come last, and their labels say so.
    """
    ready = sorted(ready_datasets(db), key=lambda pair: not _fits(pair[1], method))
    labels = {item.name: _dataset_label(item, version, method) for item, version in ready}
    if chosen in labels:
        return list(labels.items())
    missing = gettext("%(name)s (missing)") % {"name": chosen}
    return [(chosen, missing if chosen else gettext("Choose a dataset")), *labels.items()]


def fitting_datasets(db: Session, method: Method) -> list[str]:
    """Return the names of the datasets that a method can train on, newest first."""
    return [item.name for item, version in ready_datasets(db) if _fits(version, method)]


def ready_datasets(db: Session) -> list[tuple[Dataset, DatasetVersion]]:
    """Return the datasets that runs can train on, newest first, each with its current version."""
    newest = datasets.newest(db)
    current = versions.current_by_dataset(db, newest)
    return [(item, current[item.id or 0]) for item in newest if item.id in current]


def _fits(version: DatasetVersion, method: Method) -> bool:
    return data_quality.fits(version, method)


def _dataset_label(dataset: Dataset, version: DatasetVersion, method: Method) -> str:
    if _fits(version, method):
        return f"{dataset.name} ({_row_count(version.train_rows)})"
    kind = gettext(KIND_NAMES[version.kind])
    if version.kind in method.trains_on:
        kind = gettext("other answers")
    return gettext("%(name)s (does not fit: %(kind)s)") % {"name": dataset.name, "kind": kind}


def _row_count(rows: int) -> str:
    return ngettext("%(rows)s row", "%(rows)s rows", rows) % {"rows": formatting.number(rows)}
