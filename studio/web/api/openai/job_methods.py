"""The methods of fine-tuning jobs, with the names and hyperparameters of OpenAI's API."""

import json
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import AfterValidator

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.graders.schema import parse_grader
from studio.methods import METHODS
from studio.methods.base import Method as TrainingMethod
from studio.recipe.dotted_keys import flatten
from studio.web.api.openai.schemas import Body, Out, check_fields

Auto = Literal["auto"]
USUAL_ANSWERS = 8
"""Answers to a prompt, of a reinforcement job with a compute multiplier of 1."""
MAX_ANSWERS = 256
MAX_COMPUTE = MAX_ANSWERS / USUAL_ANSWERS
_MAX_PROMPTS_AT_A_TIME = 4


class Hyperparameters(Body):
    n_epochs: Auto | Annotated[int, Ge(1), Le(50)] = "auto"
    batch_size: Auto | Annotated[int, Ge(1), Le(256)] = "auto"
    learning_rate_multiplier: Auto | Annotated[float, Gt(0), Le(1000)] = "auto"
    """Multiplies the recommended learning rate for the model and its trainable weights."""


def _check_grader(grader: dict[str, Any]) -> dict[str, Any]:
    try:
        parse_grader(grader)
    except InvalidError as error:
        raise ValueError(error.message) from error
    return grader


class Supervised(Body):
    hyperparameters: Hyperparameters = Hyperparameters()


class DPOHyperparameters(Hyperparameters):
    beta: Auto | Annotated[float, Gt(0), Le(2)] = "auto"
    """How close the model stays to where it began: lower moves further."""


class DPO(Body):
    hyperparameters: DPOHyperparameters = DPOHyperparameters()


class ReinforcementHyperparameters(Hyperparameters):
    compute_multiplier: Auto | Annotated[float, Gt(0), Le(MAX_COMPUTE)] = "auto"
    """How many answers are tried: as a multiple of the 8 that are usual for each prompt."""
    eval_interval: Auto | Annotated[int, Ge(1), Le(10_000_000)] = "auto"
    """Steps between two validations."""
    eval_samples: Auto | Annotated[int, Ge(1), Le(MAX_ANSWERS)] = "auto"
    """Answers to each validation prompt."""
    reasoning_effort: Literal["default"] | None = None
    """Models of the studio have no such setting."""


class Reinforcement(Body):
    grader: Annotated[dict[str, Any], AfterValidator(_check_grader)]
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()


class Method(Body):
    type: Annotated[str, Len(1, 50)] = "supervised"
    supervised: Supervised | None = None
    dpo: DPO | None = None
    reinforcement: Reinforcement | None = None


class ResolvedOut(Out):
    """The hyperparameters a job actually uses."""

    n_epochs: float
    batch_size: int
    learning_rate_multiplier: float


class SupervisedOut(Out):
    hyperparameters: ResolvedOut


class ResolvedDPOOut(ResolvedOut):
    beta: float


class DPOOut(Out):
    hyperparameters: ResolvedDPOOut


class SupervisedMethodOut(Out):
    """Also of jobs whose method OpenAI's API does not have; `x_studio.recipe` names it."""

    type: Literal["supervised"] = "supervised"
    supervised: SupervisedOut


class DPOMethodOut(Out):
    type: Literal["dpo"] = "dpo"
    dpo: DPOOut


class ResolvedReinforcementOut(ResolvedOut):
    compute_multiplier: float
    eval_interval: int | Auto
    eval_samples: int
    reasoning_effort: Literal["default"] = "default"


class ReinforcementOut(Out):
    grader: dict[str, Any]
    hyperparameters: ResolvedReinforcementOut


class ReinforcementMethodOut(Out):
    type: Literal["reinforcement"] = "reinforcement"
    reinforcement: ReinforcementOut


JobMethodOut = SupervisedMethodOut | DPOMethodOut | ReinforcementMethodOut


_METHOD_BY_TYPE = {method.openai_type: method for method in METHODS.values() if method.openai_type}


def get_method(method: Method | None) -> TrainingMethod:
    """Return the training method that a job asks for.

    Raises:
        InvalidError: The studio has no such method.

    """
    kind = method.type if method else "supervised"
    if kind in _METHOD_BY_TYPE:
        return _METHOD_BY_TYPE[kind]
    error = InvalidError(
        f"The method {kind} is not available in this studio.",
        hint=f"Use {' or '.join(_METHOD_BY_TYPE)}; others can be named in x_studio.method.",
        param="method.type",
    )
    error.code = "unsupported_method"
    raise error


def get_hyperparameters(method: Method | None, older: Hyperparameters | None) -> Hyperparameters:
    """Return the requested hyperparameters: the method's, or those that older clients send.

    Raises:
        InvalidError: The job asks for something unsupported.

    """
    kind = get_method(method).openai_type
    part: Supervised | DPO | Reinforcement | None = getattr(method, kind, None)
    _refuse_other_parts(method, kind)
    if kind == "reinforcement" and part is None:
        raise InvalidError(
            "A reinforcement job needs a grader.",
            hint="Set method.reinforcement.grader.",
            param="method.reinforcement.grader",
        )
    chosen = part.hyperparameters if part else older or Hyperparameters()
    for body in (method, part, chosen):
        if body is not None:
            check_fields(body, (), {})
    return chosen


def _refuse_other_parts(method: Method | None, kind: str) -> None:
    """Reject settings of a method that the job does not use."""
    for other in _METHOD_BY_TYPE.keys() - {kind}:
        if getattr(method, other, None) is not None:
            raise InvalidError(
                f"The job's method is {kind}, but it has settings for {other}.",
                hint=f"Leave out method.{other}, or set method.type to {other}.",
                param=f"method.{other}",
            )


def own_settings(method: Method | None, chosen: Hyperparameters) -> dict[str, Any]:
    """Return the settings that a method's own hyperparameters are, by their dotted names."""
    names = get_method(method).openai_hyperparameters
    settings = {
        place: value
        for name, place in names.items()
        if (value := getattr(chosen, name, "auto")) != "auto"
    }
    if method is None or method.reinforcement is None:
        return settings
    return settings | _reinforcement_settings(method.reinforcement)


def _reinforcement_settings(asked: Reinforcement) -> dict[str, Any]:
    chosen = asked.hyperparameters
    settings: dict[str, Any] = {"reward.grader": json.dumps(asked.grader)}
    if chosen.compute_multiplier != "auto":
        answers = round(USUAL_ANSWERS * chosen.compute_multiplier)
        settings["rollouts.answers_per_prompt"] = max(2, answers)
    if chosen.batch_size != "auto":
        # All answers to a prompt are in memory at a time, so a batch is divided.
        sizes = range(1, min(chosen.batch_size, _MAX_PROMPTS_AT_A_TIME) + 1)
        size = max(size for size in sizes if chosen.batch_size % size == 0)
        settings["optimisation.per_device_train_batch_size"] = size
        settings["optimisation.gradient_accumulation_steps"] = chosen.batch_size // size
    return settings


def method_out(run: Run, resolved: ResolvedOut) -> JobMethodOut:
    """Return the method of a run with the hyperparameters it uses."""
    kind = METHODS[run.recipe.method].openai_type
    if kind == "reinforcement":
        return _reinforcement_out(run, resolved)
    if kind != "dpo":
        return SupervisedMethodOut(supervised=SupervisedOut(hyperparameters=resolved))
    settings = flatten(run.recipe.model_dump())
    own = METHODS[run.recipe.method].openai_hyperparameters
    values = {name: settings[place] for name, place in own.items()}
    return DPOMethodOut(
        dpo=DPOOut(hyperparameters=ResolvedDPOOut(**resolved.model_dump(), **values))
    )


def _reinforcement_out(run: Run, resolved: ResolvedOut) -> ReinforcementMethodOut:
    settings = flatten(run.recipe.model_dump())
    interval = settings["evaluation.eval_steps"]
    hyperparameters = ResolvedReinforcementOut(
        **resolved.model_dump(),
        compute_multiplier=settings["rollouts.answers_per_prompt"] / USUAL_ANSWERS,
        # Below 1, it is a share of the run.
        eval_interval=int(interval) if interval >= 1 else "auto",
        eval_samples=settings["rollouts.validation_answers"],
    )
    grader = json.loads(settings["reward.grader"])
    return ReinforcementMethodOut(
        reinforcement=ReinforcementOut(grader=grader, hyperparameters=hyperparameters)
    )


def resolved_hyperparameters(run: Run, recommended: float) -> ResolvedOut:
    """Return the hyperparameters a run uses; `recommended` is the rate for a multiplier of 1."""
    optimisation = run.recipe.optimisation
    epochs = optimisation.num_train_epochs
    return ResolvedOut(
        n_epochs=int(epochs) if epochs == int(epochs) else epochs,
        batch_size=optimisation.per_device_train_batch_size
        * optimisation.gradient_accumulation_steps,
        learning_rate_multiplier=round(optimisation.learning_rate / recommended, 6),
    )
