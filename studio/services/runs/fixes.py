"""Recipe changes that may fix a failed run or numerical issues, by failure or alarm code.

Each fix takes one click: a new run of the same recipe with a few values changed. Fixes that could
not run here are not offered.

"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session

from studio.errors import InvalidError
from studio.hardware import Hardware, detect
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.methods.rollouts import RolloutRecipe
from studio.recipe.adapters import FullFineTune
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.services.datasets import datasets
from studio.services.models import models
from studio.services.precision import number_formats, recommendation
from studio.services.runs import runs
from studio.services.runs.attempts import smaller_batch
from studio.weights.model_facts import ModelFacts

LEARNING_RATE_DIVISOR = 10
"""What the learning rate is divided by: smaller divisors seldom help a run that diverged."""

STRONG_BETA = 0.04
"""The least weight of the distance from the model before training that is worth a new run."""

MAX_SWAPS = 20
"""How many other models or datasets are offered, newest first."""

_MIN_LENGTH = 16
_MAX_LENGTH = 1_048_576
_LENGTH_MULTIPLE = 64
"""Suggested lengths are multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    title: str
    """What the fix does; follows "Run again"."""
    change: dict[str, Any]
    """Values that override the recipe's."""
    swap: str = ""
    """The field that gets another value, if several fixes offer alternatives for it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    db: Session
    recipe: AnyRecipe
    facts: Mapping[str, int]
    """Figures that the failure reported."""
    hardware: Hardware = field(default_factory=detect)


_FixFinder = Callable[[_Failure], Iterator[Fix]]


def list_fixes(
    db: Session, code: str, recipe: AnyRecipe, facts: Mapping[str, int] | None = None
) -> list[Fix]:
    """Return the fixes for a failure or alarm that can run here, most likely first."""
    failure = _Failure(db, recipe, facts or {})
    candidates = (fix for finder in _FIXES_BY_CODE.get(code, ()) for fix in finder(failure))
    return [fix for fix in candidates if _can_run(failure, fix)]


def _can_run(failure: _Failure, fix: Fix) -> bool:
    try:
        changed = RECIPE_ADAPTER.validate_python(merge(failure.recipe.model_dump(), fix.change))
        runs.check(failure.db, changed)
    except (InvalidError, ValidationError):
        return False
    return True


def _wider_dtypes(failure: _Failure) -> Iterator[Fix]:
    """Offer wider formats: first one with the range of float32, then float32 itself."""
    mode = PRECISIONS[failure.recipe.precision]
    wider: tuple[PrecisionName, ...] = ("fp32",)
    if mode.scaler or mode.weights != "float32" or mode.is_float8:
        wider = ("bf16", "fp32")
    for name in wider:
        if name != mode.name:
            yield Fix(title=f"in {PRECISIONS[name].title}", change={"precision": name})


def _lower_learning_rate(failure: _Failure) -> Iterator[Fix]:
    rate = float(f"{failure.recipe.optimisation.learning_rate / LEARNING_RATE_DIVISOR:.3g}")
    title = f"with a learning rate of {rate:g}"
    yield Fix(title=title, change={"optimisation": {"learning_rate": rate}})


def _less_memory(failure: _Failure) -> Iterator[Fix]:
    """Offer changes that need less memory; those that keep the result the same come first."""
    if not _fits(failure):
        yield from _lora_adapter(failure)
    if change := smaller_batch(failure.recipe):
        size = change["optimisation"]["per_device_train_batch_size"]
        accumulation = change["optimisation"]["gradient_accumulation_steps"]
        yield Fix(
            title=f"with batch size {size} and {accumulation} accumulation steps", change=change
        )
        return
    if not failure.recipe.optimisation.activation_checkpointing:
        change = {"optimisation": {"activation_checkpointing": True}}
        yield Fix(title="with activation checkpointing", change=change)
    length = failure.recipe.data.max_length // 2
    if length >= _MIN_LENGTH:
        title = f"with a max sequence length of {length:,} tokens"
        yield Fix(title=title, change={"data": {"max_length": length}})
    if _fits(failure):
        yield from _lora_adapter(failure)


def _lora_adapter(failure: _Failure) -> Iterator[Fix]:
    """Offer a LoRA adapter instead of a full fine-tune, in a precision that supports one."""
    if isinstance(failure.recipe.adapter, FullFineTune):
        change: dict[str, Any] = {"adapter": {"kind": "lora"}}
        if PRECISIONS[failure.recipe.precision].rounding is not None:
            change["precision"] = "bf16"
        yield Fix(title="with a LoRA adapter", change=change)


def _fits(failure: _Failure) -> bool:
    """Whether weights, gradients and optimizer states alone fit into the available memory."""
    sizes = number_formats.plan_dtypes(failure.recipe, _model_facts(failure)).sizes
    return sizes is None or sizes.total < failure.hardware.usable_memory_bytes


def _model_facts(failure: _Failure) -> ModelFacts:
    try:
        return recommendation.load_model_facts(failure.db, failure.recipe.base_model)
    except InvalidError:
        return ModelFacts()


def _longer_examples(failure: _Failure) -> Iterator[Fix]:
    longest = failure.facts.get("longest", 0)
    length = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, _MAX_LENGTH)
    if length > failure.recipe.data.max_length:
        title = f"with a max sequence length of {length:,} tokens"
        yield Fix(title=title, change={"data": {"max_length": length}})


def _longer_answers(failure: _Failure) -> Iterator[Fix]:
    if length := 2 * failure.recipe.answer_tokens:
        title = f"with a max answer length of {length:,} tokens"
        yield Fix(title=title, change={"rollouts": {"max_new_tokens": length}})


def _more_answers(failure: _Failure) -> Iterator[Fix]:
    """Offer more answers to each prompt, and as many at a time as before."""
    if isinstance(failure.recipe, RolloutRecipe) and not failure.facts.get("solved"):
        count = 2 * failure.recipe.answers_per_prompt
        prompts = max(1, failure.recipe.optimisation.per_device_train_batch_size // 2)
        change = {
            "rollouts": {"answers_per_prompt": count},
            "optimisation": {"per_device_train_batch_size": prompts},
        }
        yield Fix(title=f"with {count} answers per prompt", change=change)


def _nearer_start(failure: _Failure) -> Iterator[Fix]:
    """Offer to keep the model nearer to the one before training."""
    if isinstance(failure.recipe, RolloutRecipe):
        beta = float(f"{max(STRONG_BETA, 2 * failure.recipe.reference_weight):.3g}")
        yield Fix(title=f"with a beta of {beta:g}", change={"policy": {"beta": beta}})


def _chat_templates(_case: _Failure) -> Iterator[Fix]:
    for name in ("chatml", "plain"):
        change = {"data": {"chat_template": name}}
        yield Fix(title=f"with the {name} chat template", change=change)


def _full_fine_tune(_case: _Failure) -> Iterator[Fix]:
    yield Fix(title="as a full fine-tune", change={"adapter": {"kind": "full"}})


def _unchanged(_case: _Failure) -> Iterator[Fix]:
    yield Fix(title="without changes", change={})


def _other_models(failure: _Failure) -> Iterator[Fix]:
    others = (
        model for model in models.newest(failure.db) if model.name != failure.recipe.base_model
    )
    names = (model.name for model in others if model.kind == "hub" or Path(model.location).is_dir())
    for name in islice(names, MAX_SWAPS):
        yield Fix(title=f"on {name}", change={"base_model": name}, swap="base_model")


def _other_datasets(failure: _Failure) -> Iterator[Fix]:
    others = (
        dataset for dataset in datasets.newest(failure.db) if dataset.name != failure.recipe.dataset
    )
    names = (dataset.name for dataset in others if dataset.version is not None)
    for name in islice(names, MAX_SWAPS):
        yield Fix(title=f"on {name}", change={"dataset": name}, swap="dataset")


_FIXES_BY_CODE: dict[str, tuple[_FixFinder, ...]] = {
    "out_of_memory": (_less_memory, _other_models),
    "non_finite": (_wider_dtypes, _lower_learning_rate),
    "steps_left_out": (_wider_dtypes, _lower_learning_rate),
    "step_left_out": (_lower_learning_rate,),
    "activations_overflow": (_wider_dtypes, _lower_learning_rate),
    "gradients_overflow": (_lower_learning_rate,),
    "gradients_underflow": (_wider_dtypes,),
    "little_headroom": (_wider_dtypes,),
    "loss_scale_collapsed": (_wider_dtypes,),
    "updates_lost": (_wider_dtypes,),
    "rewards_rounded": (_wider_dtypes,),
    "no_spread": (_more_answers, _other_datasets),
    "answers_cut_off": (_longer_answers,),
    "kl_runaway": (_lower_learning_rate, _nearer_start),
    "reward_hacked": (_nearer_start, _lower_learning_rate),
    "sampling_differs": (_wider_dtypes,),
    "dtype_mismatch": (_wider_dtypes,),
    "precision_refused": (_wider_dtypes,),
    "bad_row": (_other_datasets, _chat_templates),
    "all_labels_masked": (_other_datasets,),
    "sequence_too_long": (_longer_examples, _other_datasets),
    "too_few_rows": (_other_datasets,),
    "chat_template_refused": (_chat_templates, _other_models),
    "no_chat_template": (_chat_templates, _other_models),
    "no_adapter_layers": (_full_fine_tune, _other_models),
    "disk_full": (_unchanged,),
    "no_connection": (_unchanged, _other_models),
    "gpu_failed": (_unchanged,),
    "killed": (_unchanged,),
    "hang": (_unchanged,),
    "lost_worker": (_unchanged,),
    "unavailable": (_unchanged,),
    "invalid": (_other_models, _other_datasets),
    **dict.fromkeys(
        (
            "gated_model",
            "model_not_found",
            "no_safetensors",
            "corrupt_weights",
            "incompatible_checkpoint",
            "needs_remote_code",
            "unsupported_architecture",
            "slow_tokenizer",
            "no_end_token",
        ),
        (_other_models,),
    ),
}
