"""Start an adapter from the adapter of another run, and refuse one that does not fit."""

import re
from pathlib import Path

from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from studio.errors import TrainingError

ADAPTER_FILE = "adapter_model.safetensors"
_HINT = "Use the settings of that run's adapter, or merge it and train a new one on the result."
_MAX_NAMED = 3
_ADAPTER = re.compile(r"\.(?:lora|oft|ia3)_")
"""Occurs in the names of an adapter's weights, but not of parts that are trained in full."""


def start_from(model: PeftModel, config: PeftConfig, folder: Path) -> None:
    """Replace the new adapter's weights with those that another run saved in `folder`.

    Parts that only the new adapter has, such as the head of another method, start as they are.

    Raises:
        TrainingError: the folder holds no adapter, or one of other layers, rank or scale.

    """
    file = folder / ADAPTER_FILE
    if not file.is_file():
        raise TrainingError(
            "model_not_found",
            "The adapter that this run continues from no longer exists.",
            hint="Restore the other run from the trash, or start with a new adapter.",
        )
    _refuse_other_scale(config, PeftConfig.from_pretrained(folder))
    weights = load_file(file)
    new = {name: weight.shape for name, weight in get_peft_model_state_dict(model).items()}
    other = {name: weight.shape for name, weight in weights.items()}
    lacking = [name for name in new if name not in other and _ADAPTER.search(name)]
    unfit = [name for name, shape in other.items() if new.get(name) != shape]
    if lacking or unfit:
        named = ", ".join([*unfit, *lacking][:_MAX_NAMED])
        raise TrainingError(
            "conflict",
            f"The adapter of the other run does not fit: {len(unfit) + len(lacking)} of its "
            f"weights differ in name or size, first {named}.",
            hint=_HINT,
        )
    set_peft_model_state_dict(model, weights)


def _refuse_other_scale(config: PeftConfig, other: PeftConfig) -> None:
    """Refuse another kind of adapter, or one whose weights are multiplied by another number.

    An adapter without new tokens can get some.
    """
    names = ["peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "oft_block_size"]
    if getattr(other, "trainable_token_indices", None) is not None:
        names.append("trainable_token_indices")
    for name in names:
        own, parents = getattr(config, name, None), getattr(other, name, None)
        if own != parents:
            raise TrainingError(
                "conflict",
                f"The adapter of the other run has {name} {parents}, this one {own}.",
                hint=_HINT,
            )
