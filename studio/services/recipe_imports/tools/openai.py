"""OpenAI: the JSON of a fine-tuning job, as it is sent or as it is returned."""

from collections.abc import Callable
from typing import Any

from studio.methods import METHODS
from studio.services.recipe_imports import advice, conversions
from studio.services.recipe_imports.table import (
    NAME,
    Convert,
    NoCounterpartError,
    Row,
    SourceFile,
    Tool,
    Use,
    absent,
    same,
)

_TYPES = {method.openai_type: name for name, method in METHODS.items() if method.openai_type}
_AUTO = "auto means the defaults of the studio here."
USUAL_ANSWERS = 8
"""Answers to a prompt, with a compute multiplier of 1."""


def find_method(file: SourceFile) -> str:
    return _TYPES.get(str(file.get("method.type")), "sft")


def _type(value: object, _file: SourceFile) -> Use:
    if str(value) not in _TYPES:
        raise NoCounterpartError("Choose a method in the form.")
    return Use({"method": _TYPES[str(value)]})


def _model(value: object, file: SourceFile) -> Use:
    if here := file.known.model(str(value)):
        return Use({"base_model": here})
    raise NoCounterpartError(
        "Models of OpenAI cannot be trained here. Choose one of your models, or one of the hub."
    )


def _unless_auto(convert: Callable[[Any, SourceFile], Use]) -> Convert:
    """Return a conversion that leaves our default if a value is `auto`."""
    return lambda value, file: Use(note=_AUTO) if value == "auto" else convert(value, file)


def _setting(name: str) -> Convert:
    return _unless_auto(lambda value, _file: Use({name: value}))


def _rate(value: object, file: SourceFile) -> Use:
    recommended = METHODS[file.method].recipe.model_fields["optimisation"].default.learning_rate
    note = "Here it is the learning rate itself: the multiplier times the default of the method."
    return Use({"optimisation.learning_rate": conversions.number(value) * recommended}, note)


def _compute(value: object, _file: SourceFile) -> Use:
    answers = max(2, round(USUAL_ANSWERS * conversions.number(value)))
    return Use({"rollouts.answers_per_prompt": answers}, "Here it is the answers to each prompt.")


def _hyperparameters(prefix: str) -> tuple[Row, ...]:
    return (
        same(f"{prefix}.n_epochs", convert=_setting("optimisation.num_train_epochs")),
        same(f"{prefix}.batch_size", convert=_setting("optimisation.per_device_train_batch_size")),
        same(f"{prefix}.learning_rate_multiplier", convert=_unless_auto(_rate)),
    )


_REINFORCEMENT = "method.reinforcement.hyperparameters"

OPENAI = Tool(
    name="openai",
    title="OpenAI",
    marks=frozenset(
        {
            "training_file",
            "hyperparameters.n_epochs",
            "method.type",
            "fine_tuned_model",
            "hyperparameters.batch_size",
            "hyperparameters.learning_rate_multiplier",
        }
    ),
    rows=(
        same("model", convert=_model),
        same("training_file", convert=conversions.dataset),
        same("suffix", NAME),
        same("user_provided_suffix", NAME),
        same("seed", "optimisation.seed"),
        same("method.type", convert=_type),
        *_hyperparameters("hyperparameters"),
        *_hyperparameters("method.supervised.hyperparameters"),
        *_hyperparameters("method.dpo.hyperparameters"),
        same("method.dpo.hyperparameters.beta", convert=_setting("preference.beta")),
        *_hyperparameters(_REINFORCEMENT),
        same("method.reinforcement.grader", "reward.grader", convert=conversions.json_text),
        same(f"{_REINFORCEMENT}.compute_multiplier", convert=_unless_auto(_compute)),
        same(f"{_REINFORCEMENT}.eval_interval", convert=_setting("evaluation.eval_steps")),
        same(f"{_REINFORCEMENT}.eval_samples", convert=_setting("rollouts.validation_answers")),
        *absent(advice.ALGORITHM, f"{_REINFORCEMENT}.reasoning_effort"),
        *absent(advice.VALIDATION_DATA, "validation_file"),
        *absent(advice.TRACKING, "integrations", "metadata"),
        *absent(
            advice.RESULT,
            "id",
            "object",
            "created_at",
            "finished_at",
            "fine_tuned_model",
            "organization_id",
            "result_files",
            "status",
            "trained_tokens",
            "error",
            "estimated_finish",
            "usage_metrics",
            "shared_with_openai",
            "eval_id",
        ),
    ),
    find_method=find_method,
)
