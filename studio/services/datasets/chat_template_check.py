"""Whether a model knows how turns are written; if not, a template is chosen, never assumed."""

from pathlib import Path

from sqlmodel import Session

from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.services.datasets import versions
from studio.services.models import models
from studio.services.precision.incompatibilities import Refusal
from studio.weights import download_filter, model_metadata


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's conversations could not be written; nothing if they can."""
    if recipe.data.chat_template != "model" or not _lacks_template(db, recipe.base_model):
        return []
    try:
        if versions.require(db, recipe.dataset).kind == "text":
            return []
    except InvalidError:  # That is told beside its own field.
        return []
    return [
        Refusal(
            message="This model has no chat template: it was never taught to hold a conversation, "
            "so how turns are to be written must be chosen.",
            hint="Use the ChatML template.",
            param="data.chat_template",
            repair={"data": {"chat_template": "chatml"}},
        )
    ]


def _lacks_template(db: Session, name: str) -> bool:
    """Whether a model is known to have none; of one that is not here, nothing is known."""
    try:
        folder = Path(models.require(db, name))
        if (
            not folder.is_absolute()
            or not (folder / download_filter.TOKENIZER_CONFIG_FILE).is_file()
        ):
            return False
        return not model_metadata.read(folder).template
    except (InvalidError, OSError):
        return False
