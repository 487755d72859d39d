"""Teachers: models that others learn from, which recipes name like a base model."""

from collections.abc import Iterator
from pathlib import Path

from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.methods import AnyRecipe
from studio.recipe.base import TEACHER_PARAM, Teacher
from studio.services.datasets import versions
from studio.services.models import models
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import Refusal
from studio.weights import vocabularies
from studio.weights.architectures import CAUSAL_MODEL_HINT, KIND_DESCRIPTIONS
from studio.weights.vocabularies import Vocabulary

_HINT = (
    "Choose a model with the same tokenizer that does the task better: a larger one of the same "
    "family, or one that a run has trained."
)

_MAX_COMPARED = 20
"""How many of the newest models to look at for a teacher."""


def check(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a recipe's teacher cannot teach its base model, worst first.

    Of a model that is not on this machine yet, only the run can tell.
    """
    if recipe.teacher is None:
        return []
    try:
        return [*_problems(db, recipe, recipe.teacher), *_check_prompts(db, recipe)]
    except InvalidError as error:
        return [_refusal(error.message, _merge_hint(db, recipe.teacher.name) or error.hint)]


def suggest(db: Session, base: str) -> str:
    """Return the newest model that a run has trained with the tokens of a base model, or ""."""
    student = _read_vocabulary(db, base)
    for model in models.newest(db, limit=_MAX_COMPARED) if student else ():
        if model.kind == "run" and model.name != base:
            teacher = _read_vocabulary(db, model.name)
            if student and teacher and vocabularies.find_problem(student, teacher) is None:
                return model.name
    return ""


def _read_vocabulary(db: Session, name: str) -> Vocabulary | None:
    """Return the vocabulary of a model; None if it is not known here."""
    try:
        return vocabularies.read(Path(models.require(db, name)))
    except InvalidError:
        return None


def _problems(db: Session, recipe: AnyRecipe, teacher: Teacher) -> Iterator[Refusal]:
    if not teacher.name:
        yield _refusal("There is no teacher to learn from.", _HINT)
        return
    own, other = models.require(db, recipe.base_model), models.require(db, teacher.name)
    if own == other and not recipe.adapter.continue_from:
        message = "The teacher is the base model itself, so there is nothing to learn."
        yield _refusal(message, _HINT)
    facts = recommendation.load_model_facts(db, teacher.name)
    if facts.kind not in (None, "causal"):
        message = KIND_DESCRIPTIONS[facts.kind]
        yield _refusal(f"Choose another teacher. {message}", CAUSAL_MODEL_HINT)
    if facts.quantised or facts.packed_layers:
        message = "The weights of the teacher are saved in a quantised format."
        yield _refusal(message, "Choose the original model.")
    if Path(own).is_absolute() and Path(other).is_absolute():
        yield from _compare_vocabularies(Path(own), Path(other))


def _check_prompts(db: Session, recipe: AnyRecipe) -> list[Refusal]:
    """Return why a student cannot write answers to a dataset."""
    if not recipe.answer_tokens or versions.require(db, recipe.dataset).kind != "text":
        return []
    return [
        Refusal(
            message="Plain text has no prompts that the student could answer.",
            hint="Learn on the given answers.",
            param="distillation.answers",
            repair={"distillation": {"answers": "given"}},
        )
    ]


def _merge_hint(db: Session, name: str) -> str:
    """Return what to do if the name is that of a run whose adapter alone is no model."""
    number = name.removeprefix("run-")
    run = db.get(Run, int(number)) if name != number and number.isdecimal() else None
    if run is None or run.recipe.adapter.kind == "full":
        return ""
    return (
        f"Run {run.id} trained an adapter: merge it on its Files page, and name the folder of the "
        "merged model."
    )


def _compare_vocabularies(own: Path, other: Path) -> Iterator[Refusal]:
    """Yield how the tokenizers of two folders differ, as far as their files show."""
    student, teacher = vocabularies.read(own), vocabularies.read(other)
    problem = vocabularies.find_problem(student, teacher) if student and teacher else None
    if problem is not None:
        yield _refusal(problem.message, problem.hint)


def _refusal(message: str, hint: str) -> Refusal:
    return Refusal(message=message, hint=hint, param=TEACHER_PARAM)
