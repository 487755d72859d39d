"""Check that a base model has a chat template, or that the recipe chooses one."""

from pathlib import Path

from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.services.datasets import versions
from studio.services.models import models
from studio.services.precision.incompatibilities import Refusal
from studio.weights import download_filter, model_metadata


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's conversations cannot be formatted; an empty list if they can."""
    if recipe.data.chat_template != "model" or not _lacks_template(db, recipe.base_model):
        return []
    try:
        if versions.require(db, recipe.dataset).kind == "text":
            return []
    except InvalidError:  # The dataset's own field shows this error.
        return []
    return [
        Refusal(
            message="This model has no chat template: it was not trained on conversations. "
            "Choose how turns are formatted.",
            hint="Use the ChatML template.",
            param="data.chat_template",
            repair={"data": {"chat_template": "chatml"}},
        )
    ]


def _lacks_template(db: Session, name: str) -> bool:
    """Tell whether a local model has no chat template; False for a model not on this disk."""
    try:
        folder = Path(models.require(db, name))
        if (
            not folder.is_absolute()
            or not (folder / download_filter.TOKENIZER_CONFIG_FILE).is_file()
        ):
            return False
        return not model_metadata.read(folder).template_file
    except (InvalidError, OSError):
        return False
