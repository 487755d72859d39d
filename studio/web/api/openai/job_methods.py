"""The methods of fine-tuning jobs, with the names and hyperparameters of OpenAI's API."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.methods import METHODS
from studio.methods.base import Method as TrainingMethod
from studio.recipe.dotted_keys import flatten
from studio.web.api.openai.schemas import Body, Out, check_fields

Auto = Literal["auto"]


class Hyperparameters(Body):
    n_epochs: Auto | Annotated[int, Ge(1), Le(50)] = "auto"
    batch_size: Auto | Annotated[int, Ge(1), Le(256)] = "auto"
    learning_rate_multiplier: Auto | Annotated[float, Gt(0), Le(1000)] = "auto"
    """Multiplies the recommended learning rate for the model and its trainable weights."""


class Supervised(Body):
    hyperparameters: Hyperparameters = Hyperparameters()


class DPOHyperparameters(Hyperparameters):
    beta: Auto | Annotated[float, Gt(0), Le(2)] = "auto"
    """How close the model stays to where it began: lower moves further."""


class DPO(Body):
    hyperparameters: DPOHyperparameters = DPOHyperparameters()


class Method(Body):
    type: Annotated[str, Len(1, 50)] = "supervised"
    supervised: Supervised | None = None
    dpo: DPO | None = None


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


JobMethodOut = SupervisedMethodOut | DPOMethodOut


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
    part: Supervised | DPO | None = getattr(method, kind, None)
    _refuse_other_parts(method, kind)
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


def method_out(run: Run, resolved: ResolvedOut) -> JobMethodOut:
    """Return the method of a run with the hyperparameters it uses."""
    if METHODS[run.recipe.method].openai_type != "dpo":
        return SupervisedMethodOut(supervised=SupervisedOut(hyperparameters=resolved))
    settings = flatten(run.recipe.model_dump())
    own = METHODS[run.recipe.method].openai_hyperparameters
    values = {name: settings[place] for name, place in own.items()}
    return DPOMethodOut(
        dpo=DPOOut(hyperparameters=ResolvedDPOOut(**resolved.model_dump(), **values))
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
