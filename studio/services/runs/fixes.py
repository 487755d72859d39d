"""What may mend a run that has failed, or whose numbers break: changes of its recipe, by code.

Every repair is one click: the same recipe with a few values changed, as a new run. What could not
run here is not offered.
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
from studio.methods import RECIPES, AnyRecipe
from studio.recipe.adapters import FullFineTune
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.services.datasets import datasets
from studio.services.models import models
from studio.services.precision import number_formats, recommendation
from studio.services.runs import runs
from studio.services.runs.oom_retry import smaller_batch
from studio.weights.model_facts import ModelFacts

SLOWER = 10
"""What the learning rate is divided by: less seldom helps a run that has diverged."""

MOST_SWAPS = 20
"""How many other models or data sets are offered, the newest first."""

_LEAST_LENGTH = 16
_LONGEST = 1_048_576
_ROUND = 64
"""Lengths are offered in multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    title: str
    """What will be done, after "Run again"."""
    change: dict[str, Any]
    """Values to lay over the recipe."""
    swap: str = ""
    """The field that is given something else in its place: of these there may be many."""


@dataclass(frozen=True, slots=True)
class _Case:
    db: Session
    recipe: AnyRecipe
    facts: Mapping[str, int]
    """Numbers the failure told."""
    hardware: Hardware = field(default_factory=detect)


_Way = Callable[[_Case], Iterator[Repair]]


def of(
    db: Session, code: str, recipe: AnyRecipe, facts: Mapping[str, int] | None = None
) -> list[Repair]:
    """Return the repairs of a trouble that can run here, the likeliest first."""
    case = _Case(db, recipe, facts or {})
    offered = (repair for way in _WAYS.get(code, ()) for repair in way(case))
    return [repair for repair in offered if _runs(case, repair)]


def _runs(case: _Case, repair: Repair) -> bool:
    try:
        changed = RECIPES.validate_python(merge(case.recipe.model_dump(), repair.change))
        runs.check(case.db, changed)
    except (InvalidError, ValidationError):
        return False
    return True


def _wider(case: _Case) -> Iterator[Repair]:
    """Offer the formats with more room: the range of float32 first, then all of it."""
    mode = PRECISIONS[case.recipe.precision]
    wider: tuple[PrecisionName, ...] = ("fp32",)
    if mode.scaler or mode.weights != "float32" or mode.is_float8:
        wider = ("bf16", "fp32")
    for name in wider:
        if name != mode.name:
            yield Repair(title=f"in {PRECISIONS[name].title}", change={"precision": name})


def _slower(case: _Case) -> Iterator[Repair]:
    rate = float(f"{case.recipe.optimisation.learning_rate / SLOWER:.3g}")
    title = f"with a learning rate of {rate:g}"
    yield Repair(title=title, change={"optimisation": {"learning_rate": rate}})


def _smaller(case: _Case) -> Iterator[Repair]:
    """Offer what needs less memory: what leaves the result as it is comes first."""
    if not _fits(case):
        yield from _thinner(case)
    if change := smaller_batch(case.recipe):
        size = change["optimisation"]["per_device_train_batch_size"]
        times = change["optimisation"]["gradient_accumulation_steps"]
        yield Repair(title=f"with batches of {size}, {times} to an update", change=change)
        return
    if not case.recipe.optimisation.activation_checkpointing:
        change = {"optimisation": {"activation_checkpointing": True}}
        yield Repair(title="with activation checkpointing", change=change)
    half = case.recipe.data.max_length // 2
    if half >= _LEAST_LENGTH:
        title = f"with examples of at most {half:,} tokens"
        yield Repair(title=title, change={"data": {"max_length": half}})
    if _fits(case):
        yield from _thinner(case)


def _thinner(case: _Case) -> Iterator[Repair]:
    """Offer an adapter in place of a full fine-tune, in a precision that goes with one."""
    if isinstance(case.recipe.adapter, FullFineTune):
        change: dict[str, Any] = {"adapter": {"kind": "lora"}}
        if PRECISIONS[case.recipe.precision].rounding is not None:
            change["precision"] = "bf16"
        yield Repair(title="with a LoRA adapter", change=change)


def _fits(case: _Case) -> bool:
    """Whether weights, gradients and optimizer alone are smaller than the memory there is."""
    sizes = number_formats.plan(case.recipe, _known(case)).sizes
    return sizes is None or sizes.total < case.hardware.room_bytes


def _known(case: _Case) -> ModelFacts:
    try:
        return recommendation.facts_of(case.db, case.recipe.base_model)
    except InvalidError:
        return ModelFacts()


def _longer(case: _Case) -> Iterator[Repair]:
    longest = case.facts.get("longest", 0)
    length = min(-(-longest // _ROUND) * _ROUND, _LONGEST)
    if length > case.recipe.data.max_length:
        title = f"with examples of up to {length:,} tokens"
        yield Repair(title=title, change={"data": {"max_length": length}})


def _spoken(_case: _Case) -> Iterator[Repair]:
    for name in ("chatml", "plain"):
        change = {"data": {"chat_template": name}}
        yield Repair(title=f"with the {name} template", change=change)


def _full(_case: _Case) -> Iterator[Repair]:
    yield Repair(title="as a full fine-tune", change={"adapter": {"kind": "full"}})


def _as_it_is(_case: _Case) -> Iterator[Repair]:
    yield Repair(title="as it is", change={})


def _other_model(case: _Case) -> Iterator[Repair]:
    others = (one for one in models.newest(case.db) if one.name != case.recipe.base_model)
    here = (one.name for one in others if one.kind == "hub" or Path(one.location).is_dir())
    for name in islice(here, MOST_SWAPS):
        yield Repair(title=f"on {name}", change={"base_model": name}, swap="base_model")


def _other_data(case: _Case) -> Iterator[Repair]:
    others = (one for one in datasets.newest(case.db) if one.name != case.recipe.dataset)
    names = (one.name for one in others if one.version is not None)
    for name in islice(names, MOST_SWAPS):
        yield Repair(title=f"on {name}", change={"dataset": name}, swap="dataset")


_WAYS: dict[str, tuple[_Way, ...]] = {
    "out_of_memory": (_smaller, _other_model),
    "non_finite": (_wider, _slower),
    "steps_left_out": (_wider, _slower),
    "step_left_out": (_slower,),
    "activations_overflow": (_wider, _slower),
    "gradients_overflow": (_slower,),
    "gradients_underflow": (_wider,),
    "little_headroom": (_wider,),
    "loss_scale_collapsed": (_wider,),
    "updates_lost": (_wider,),
    "dtype_mismatch": (_wider,),
    "precision_refused": (_wider,),
    "bad_row": (_other_data, _spoken),
    "all_labels_masked": (_other_data,),
    "sequence_too_long": (_longer, _other_data),
    "too_few_rows": (_other_data,),
    "chat_template_refused": (_spoken, _other_model),
    "no_chat_template": (_spoken, _other_model),
    "no_adapter_layers": (_full, _other_model),
    "disk_full": (_as_it_is,),
    "no_connection": (_as_it_is, _other_model),
    "gpu_failed": (_as_it_is,),
    "killed": (_as_it_is,),
    "hang": (_as_it_is,),
    "lost_worker": (_as_it_is,),
    "unavailable": (_as_it_is,),
    "invalid": (_other_model, _other_data),
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
        (_other_model,),
    ),
}
