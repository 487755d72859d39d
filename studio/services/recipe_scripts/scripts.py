"""Write a recipe as a Python script for TRL, or say why it cannot be one."""

import re
from pprint import pformat
from typing import Any

from studio.errors import InvalidError
from studio.methods import METHODS, AnyRecipe
from studio.recipe.adapters import FullFineTune, Lora
from studio.recipe.chat_template_texts import IM_END, template_text
from studio.recipe.fields import Section, own_fields
from studio.recipe.precision import PRECISIONS
from studio.services.recipe_scripts import training_script

_METHODS = ("sft", "cpt")
"""Methods whose loss is TRL's own, so that a script trains the same."""
_PRECISIONS = ("fp32", "bf16", "fp16")
_OPTIMISERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "sgd")
_WIDTH = 92
_HINT = "Keep training it in the studio, or change that in a copy of the experiment."


def build(recipe: AnyRecipe, model: str) -> str:
    """Return a script that trains what a recipe trains; `model` is a folder or a name on the hub.

    Raises:
        InvalidError: TRL alone cannot train the same.

    """
    if reason := unsupported_reason(recipe):
        raise InvalidError(reason, hint=_HINT, param="recipe")
    return _fill(training_script.HEADER, _values(recipe, model)) + training_script.BODY


def unsupported_reason(recipe: AnyRecipe) -> str:
    """Return why a script cannot train the same, in a sentence; empty if it can."""
    title = METHODS[recipe.method].title
    if recipe.method not in _METHODS:
        return f"{title} has no script: the studio computes its loss in another way than TRL."
    optimisation = recipe.optimisation
    reasons = {
        "This precision has an optimizer or products of its own, which TRL does not have.": (
            recipe.precision not in _PRECISIONS
        ),
        "TRL packs rows in another order.": recipe.data.packing,
        "This optimizer is the studio's own.": optimisation.optim not in _OPTIMISERS,
        "A time limit chooses the steps by the speed of the machine: set steps or epochs.": (
            optimisation.max_minutes is not None
        ),
        "Weights have different learning rates.": optimisation.embedding_learning_rate is not None,
        "The best weights depend on the validation loss, which TRL averages in another way.": (
            recipe.keeps_best_model
        ),
        "The positions of the model are stretched.": recipe.model.rope_type != "none",
        "New tokens are added to the model.": recipe.model.new_tokens is not None,
    }
    general = next((reason for reason, holds in reasons.items() if holds), "")
    return general or _adapter_reason(recipe.adapter)


def _adapter_reason(adapter: Section) -> str:
    """Return what of an adapter, or of the trained part of a model, a script cannot do."""
    if isinstance(adapter, FullFineTune):
        return "" if adapter.trained.is_everything else "Only a part of the model is trained."
    if not isinstance(adapter, Lora):
        return "The script has LoRA adapters, and no others."
    reasons = {
        "The adapter starts in the studio's own way.": adapter.variant not in ("plain", "dora"),
        "The adapter continues from a run.": adapter.continue_from is not None,
        "The frozen model is quantised, and TRL rounds such an adapter to bfloat16.": (
            adapter.quantised is not None
        ),
        "Weights have different learning rates.": adapter.lr_ratio != 1,
        "Parts of the model are trained next to the adapter.": adapter.extra_modules != "none",
        "The layers of the adapter are chosen by their place in the model.": (
            adapter.target_modules != "all-linear" or adapter.last_layers is not None
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _values(recipe: AnyRecipe, model: str) -> dict[str, object]:
    choice, attention = str(recipe.data.chat_template), recipe.model.attention
    is_own = choice == "model"
    return {
        "model": model,
        "weights": _weights(recipe),
        "attention": None if attention == "automatic" else attention,
        "lora": _lora(recipe.adapter),
        "max_length": recipe.data.max_length,
        "validation_share": recipe.data.validation_share,
        "seed": recipe.optimisation.seed,
        "chat_template": None if is_own else template_text(choice, "OPENING"),
        "end_of_turn": IM_END if choice == "chatml" else "",
        "arguments": _arguments(recipe),
    }


def _weights(recipe: AnyRecipe) -> str:
    """Return the format to load weights in: `auto` keeps that of the file."""
    mode, adapter = PRECISIONS[recipe.precision], recipe.adapter
    if isinstance(adapter, FullFineTune) or mode.autocast is None:
        return mode.weights
    frozen = str(adapter.base_dtype)
    return "auto" if frozen == "native" else frozen


def _lora(adapter: Section) -> dict[str, Any] | None:
    if not isinstance(adapter, Lora):
        return None
    names = list(adapter.targets.names)
    return {
        "task_type": "CAUSAL_LM",
        "target_modules": names or "all-linear",
        "use_dora": adapter.lora_variant.trains_magnitudes,
        **adapter.model_dump(exclude={"kind", "target_modules", *own_fields(Lora)}),
    }


def _arguments(recipe: AnyRecipe) -> dict[str, Any]:
    """Return the arguments of TRL's trainer: those that runs give it, too."""
    return {
        **_upstream_values(recipe.optimisation),
        **_upstream_values(recipe.evaluation),
        **PRECISIONS[recipe.precision].trainer_flags,
        "save_strategy": "no",
        "eval_strategy": "steps",
        "eval_on_start": True,
        "max_length": recipe.data.max_length,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "logging_nan_inf_filter": False,
        "report_to": [],
    }


def _upstream_values(section: Section) -> dict[str, Any]:
    """Return the settings of a section that its upstream config has."""
    return section.model_dump(exclude_none=True, exclude=own_fields(type(section)))


def _fill(text: str, values: dict[str, object]) -> str:
    """Return a text with its values; in one pass, so that no value can name another."""
    code = {name: pformat(it, sort_dicts=False, width=_WIDTH) for name, it in values.items()}
    code["versions"] = training_script.written_for()
    return re.sub(r"@(\w+)@", lambda name: code[name[1]], text)
