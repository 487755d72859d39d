"""Conversions that the tables of several tools share."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from studio.services.recipe_imports import advice
from studio.services.recipe_imports.table import (
    Convert,
    NoCounterpartError,
    SourceFile,
    Use,
    is_off,
)

NO_CLIPPING = 1_000_000.0
"""The largest norm of gradients that a recipe can name: in effect, it never clips."""

_LARGEST = 1e15
"""More than any setting can be. Products of larger numbers may be infinite."""

_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant_with_warmup",
    "inverse_sqrt": "inverse_sqrt",
    "polynomial": "polynomial",
}
_OPTIMISERS = {
    "adamw_torch": "adamw_torch",
    "adamw_torch_fused": "adamw_torch_fused",
    "adamw_hf": "adamw_torch",
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "lion": "lion_32bit",
    "lion_32bit": "lion_32bit",
    "muon": "muon",
}
_PAGED = {
    "paged_adamw": "adamw_torch_fused",
    "paged_adamw_32bit": "adamw_torch_fused",
    "paged_adamw_8bit": "adamw_8bit",
    "paged_lion_32bit": "lion_32bit",
}
_ATTENTIONS = {
    "auto": "automatic",
    "disabled": "eager",
    "eager": "eager",
    "sdpa": "sdpa",
    "fa2": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
}
_EMBEDDINGS, _OUTPUT = {"embed_tokens", "embeddings", "wte"}, {"lm_head", "output"}


def number(value: object) -> float:
    """Return a value as a number; YAML reads 1e-4 as text.

    Raises:
        NoCounterpartError: It is no number.

    """
    try:
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type] # checked by trying
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if math.isnan(found):
        raise NoCounterpartError("This is not a number. The default is used.")
    if abs(found) > _LARGEST:
        raise NoCounterpartError("This number is too large. The default is used.")
    return found


def texts(value: object) -> list[str]:
    """Return a list of names, which may be written as one text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence):
        parts = [parts]
    return [text for part in parts if (text := _name(part).strip())]


def _name(part: object) -> str:
    if isinstance(part, Mapping):
        return str(part.get("path") or part.get("name") or "")
    return str(part)


def choice(table: Mapping[str, Any], otherwise: str) -> Convert:
    """Return a conversion of names; `otherwise` says what to do about names that are not there."""

    def convert(value: object, _file: SourceFile) -> object:
        name = str(value).lower()
        if name not in table:
            raise NoCounterpartError(otherwise)
        return table[name]

    return convert


schedule = choice(_SCHEDULES, advice.SCHEDULE)
attention = choice(_ATTENTIONS, advice.KERNELS)


def optimiser(value: object, _file: SourceFile) -> object:
    name = str(value).lower()
    if name in _PAGED:
        note = "Its states are not moved to the host's memory here when the GPU is full."
        return Use({"optimisation.optim": _PAGED[name]}, note)
    if name not in _OPTIMISERS:
        raise NoCounterpartError(advice.OPTIMISER)
    return _OPTIMISERS[name]


def inverted(value: object, _file: SourceFile) -> bool:
    return is_off(value)


def max_steps(value: object, _file: SourceFile) -> int | None:
    steps = number(value)
    return int(steps) if steps > 0 else None


def gradient_clipping(value: object, _file: SourceFile) -> Use:
    norm = number(value)
    if norm > 0:
        return Use({"optimisation.max_grad_norm": norm})
    note = "It means no clipping there. Here, such a large norm never clips."
    return Use({"optimisation.max_grad_norm": NO_CLIPPING}, note)


def warmup_share(value: object, file: SourceFile) -> object:
    """Return a share of the run; a number of steps that is also written counts more."""
    if file.has("warmup_steps"):
        raise NoCounterpartError("The file has warm-up steps, too, and these count.")
    return number(value)


def noise(value: object, _file: SourceFile) -> float | None:
    return number(value) or None


def sampling(*, by_length: bool) -> Convert:
    """Return a conversion of a switch: for sorting by length, or for shuffling off."""
    on, off = ("group_by_length", "random") if by_length else ("sequential", "random")
    return lambda value, _file: off if is_off(value) else on


def validation_share(value: object, _file: SourceFile) -> Use:
    share = number(value)
    if share == 0:
        return Use(note="The studio always validates, on 5 % of the rows, or a part of their own.")
    if share >= 1:
        raise NoCounterpartError("Here it is a share of the rows: set the Validation share.")
    return Use({"data.validation_share": share})


def validation_strategy(epochs: str) -> Convert:
    """Return a conversion of when to validate; `epochs` is the key of the number of epochs."""

    def convert(value: object, file: SourceFile) -> Use:
        if is_off(value):
            return Use(note="The studio always validates, ten times in a run by default.")
        if value != "epoch":
            return Use()
        passes = number(file.get(epochs))
        if passes > 1:
            return Use({"evaluation.eval_steps": 1 / passes})
        return Use({"evaluation.eval_steps": 0.5}, "A run of one epoch is validated halfway, too.")

    return convert


def saving_steps(value: object, _file: SourceFile) -> Use:
    steps = number(value)
    if steps < 1:
        raise NoCounterpartError(advice.SAVING)
    return Use({"checkpoints.save_steps": int(steps)})


def targets(value: object, _file: SourceFile) -> Use:
    """Return which layers get an adapter: all, or those with some names."""
    names = texts(value)
    if names in (["all"], ["all-linear"], ["all_linear"]):
        return Use({"adapter.target_modules": "all-linear"})
    return Use({"adapter.module_names": ", ".join(names)})


def modules_in_full(value: object, _file: SourceFile) -> Use:
    """Return what is trained besides an adapter: the embeddings, or the output layer."""
    names = set(texts(value))
    if names and names <= _OUTPUT:
        return Use({"adapter.extra_modules": "output"})
    if not names or not names <= _EMBEDDINGS | _OUTPUT:
        raise NoCounterpartError(advice.PARTS)
    note = "The output layer is trained with the embeddings here."
    return Use({"adapter.extra_modules": "embeddings"}, "" if names & _OUTPUT else note)


def new_tokens(value: object, _file: SourceFile) -> str:
    return ", ".join(texts(value))


def dataset(value: object, file: SourceFile) -> Use:
    """Return the dataset of the studio that a file names, if there is one."""
    names = texts(value)
    if len(names) > 1:
        several = ", ".join(names[:10])
        raise NoCounterpartError(
            f"A run trains on one dataset. Join these into one file, and import it: {several}."
        )
    name = names[0] if names else ""
    if here := file.known.dataset(name):
        note = f"The dataset is named {here} here."
        return Use({"dataset": here}, "" if here == name else note)
    raise NoCounterpartError(
        f"There is no dataset named {name} here. Import it on the Datasets page, then choose it in "
        "the form."
    )


def base_model(value: object, file: SourceFile) -> Use:
    """Return the model of the studio that a file names, or the name itself: a hub's, or a path."""
    name = str(value)
    here = file.known.model(name)
    note = f"The model is named {here} here."
    return Use({"base_model": here or name}, note if here and here != name else "")


def chat_template(value: object, _file: SourceFile) -> Use:
    name = str(value).lower()
    if name == "chatml":
        return Use({"data.chat_template": "chatml"})
    own = name in ("tokenizer_default", "model", "auto")
    note = (
        "The model's own chat template is used. If the base model has none, choose ChatML or plain "
        "text."
    )
    return Use({"data.chat_template": "model"}, "" if own else note)


def simpo_margin(loss: str, beta: str) -> Convert:
    """Return a conversion of SimPO's gamma, which other tools divide by beta."""

    def convert(value: object, file: SourceFile) -> Use:
        if "simpo" not in str(file.get(loss)).lower():
            raise NoCounterpartError("It only matters for SimPO.")
        note = "Here it is the margin itself, in nats per token: gamma divided by beta."
        target = number(value) / (number(file.get(beta)) or 1.0)
        return Use({"preference.target_margin": target}, note)

    return convert


def prompts_at_a_time(batch: str, accumulation: str, answers: str) -> Convert:
    """Return a conversion of batches that count answers, where ours count prompts."""

    def convert(_value: object, file: SourceFile) -> Use:
        written = max(1, int(number(file.get(answers))))
        total = number(file.get(batch)) * number(file.get(accumulation)) / written
        size = max(1, int(number(file.get(batch)) // written))
        note = (
            "It counts answers there and prompts here, with all answers of each, so that a step "
            "learns from as many answers."
        )
        settings = {
            "optimisation.per_device_train_batch_size": size,
            "optimisation.gradient_accumulation_steps": max(1, round(total / size)),
        }
        return Use(settings, note)

    return convert


def json_text(value: object, _file: SourceFile) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
