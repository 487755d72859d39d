"""Everything that can prevent a recipe from starting: model, precision, chat template, data."""

from dataclasses import replace
from pathlib import Path

from sqlmodel import Session

from studio.errors import InvalidError, UnavailableError
from studio.hardware import Hardware
from studio.methods import AnyRecipe
from studio.recipe.base import TEACHER_PARAM
from studio.services.accounts import secrets
from studio.services.datasets import data_quality, grader_columns, token_stats, versions
from studio.services.models import downloads, models, reward_models
from studio.services.precision import incompatibilities, recommendation
from studio.services.precision.incompatibilities import Refusal
from studio.services.runs import continuation, hub_access, teachers
from studio.services.workers import workers
from studio.weights import language_codes, model_files, model_metadata
from studio.weights.model_facts import ModelFacts

MODELS_PAGE = "/models"
"""The page where models are downloaded or added."""

_TIMEOUT_SECONDS = 3.0
_RETRY_HINT = "Try again, or choose a model on this machine."


def check(db: Session, recipe: AnyRecipe, facts: ModelFacts) -> list[Refusal]:
    """Return why a recipe cannot run, worst first; empty if it can."""
    return [
        *list_conflicts(recipe, facts, workers.whole_hardware(db)),
        *check_model_and_data(db, recipe),
    ]


def list_conflicts(recipe: AnyRecipe, facts: ModelFacts, hardware: Hardware) -> list[Refusal]:
    """Return what keeps a recipe from the kind of GPU that suits it best; empty if one can."""
    by_kind = (list(incompatibilities.check(recipe, facts, one)) for one in hardware.kinds)
    return min(by_kind, key=len)


def check_model_and_data(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's model is unavailable or cannot be trained on its data.

    This depends only on the method, the model, the dataset, the data settings and the reward.

    """
    return [
        *_check_model(db, recipe.base_model),
        *_check_teacher(db, recipe),
        *_check_reward_models(db, recipe),
        *continuation.check(db, recipe),
        *_check_chat_template(db, recipe),
        *check_languages(db, recipe),
        *data_quality.check(db, recipe),
        *grader_columns.check(db, recipe, _datasets_folder()),
        *token_stats.check(db, recipe),
    ]


def _datasets_folder() -> Path | None:
    hub_checks = hub_access.current()
    return hub_checks[0].datasets if hub_checks else None


def _check_model(db: Session, name: str) -> list[Refusal]:
    """Return why a model is unavailable; empty without hub checks or if it is not.

    Raises:
        InvalidError: the model does not exist, or its files cannot be read.

    """
    location = models.require(db, name)
    if Path(location).is_absolute():
        return _check_folder(db, name, Path(location))
    hub_checks = hub_access.current()
    if hub_checks is None or recommendation.load_model_facts(db, name).has_weights:
        return []
    settings, access_cache = hub_checks
    try:
        hub = downloads.hub_client(secrets.settings_with_required(db, settings, ["hub_token"]))
    except UnavailableError as error:
        return [_refusal(error.message, error.hint)]
    access_error = access_cache.find_error(replace(hub, timeout_seconds=_TIMEOUT_SECONDS), location)
    return (
        [_refusal(access_error.message, f"{access_error.hint} {_RETRY_HINT}".strip())]
        if access_error
        else []
    )


def _check_teacher(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's teacher cannot teach; empty if it can, or the recipe has none."""
    found = teachers.check(db, recipe)
    if found or recipe.teacher is None:
        return found
    unavailable = _check_model(db, recipe.teacher.name)
    return [replace(refusal, param=TEACHER_PARAM) for refusal in unavailable]


def _check_reward_models(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's graders cannot ask the reward models that they name."""
    hub_checks = hub_access.current()
    problems = reward_models.find_problems(db, hub_checks and hub_checks[0].runs, recipe)
    return [
        Refusal(message=one.error.message, hint=one.error.hint, param=one.param) for one in problems
    ]


def _check_folder(db: Session, name: str, folder: Path) -> list[Refusal]:
    if not folder.is_dir():
        return [_refusal(f"The folder of {name} no longer exists: {folder}.", _RETRY_HINT)]
    # A listed model had weights when it was added.
    if (
        models.find_by_name(db, name) is None
        and not recommendation.load_model_facts(db, name).has_weights
    ):
        return [_refusal(f"{folder} has a config but no weights.", _RETRY_HINT)]
    return []


def _refusal(message: str, hint: str) -> Refusal:
    return Refusal(message=message, hint=hint, link=MODELS_PAGE)


def _check_chat_template(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's conversations cannot be formatted; an empty list if they can."""
    is_plain = recipe.data.chat_template != "model" or models.reads_plain_text(
        db, recipe.base_model
    )
    if is_plain or not _lacks_template(db, recipe.base_model):
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


def check_languages(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a model cannot translate between a recipe's languages."""
    if recipe.outputs != "rewrite":
        return []
    family, folder = (
        recommendation.load_model_facts(db, recipe.base_model).family,
        Path(models.require(db, recipe.base_model)),
    )
    is_known = family in language_codes.MULTILINGUAL and folder.is_absolute()
    codes = language_codes.read(folder) if is_known else ()
    problem = language_codes.find_problem(family, recipe.languages, codes)
    if problem is None:
        return []
    param = "rewriting.source_language"
    return [Refusal(message=problem.message, hint=problem.hint, param=param)]


def _lacks_template(db: Session, name: str) -> bool:
    """Tell whether a local model has no chat template; False for a model not on this disk."""
    try:
        folder = Path(models.require(db, name))
        if not folder.is_absolute() or not (folder / model_files.TOKENIZER_CONFIG_FILE).is_file():
            return False
        return not model_metadata.read(folder).template_file
    except (InvalidError, OSError):
        return False
