"""Code that a model brings: run only from its own folder, and only if it is what was allowed."""

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from studio.errors import InvalidError, TrainingError
from studio.weights import model_code as brought

_AUTO_CLASS = "AutoModelForCausalLM"


def is_allowed(name: str, code: str) -> bool:
    """Whether a model's own code may run; refused where it is not what was allowed.

    Raises:
        TrainingError: it has changed since, or some of it is not in the model's folder.

    """
    folder = Path(name)
    if not code or not folder.is_absolute():
        return False
    try:
        found = brought.read(folder)
    except InvalidError as error:
        raise TrainingError("absurd_config", error.message, hint=error.hint) from error
    if not found.wanted:
        return False
    if found.sha256 != code or found.elsewhere or found.lacking:
        raise TrainingError(
            "needs_remote_code",
            "This model's code is not what was allowed to run.",
            hint="Look at it, and allow it anew, on the model's page.",
        )
    return True


def register_model_class(name: str, config: PreTrainedConfig) -> None:
    """Make the class of a model's own code known, so that it can be asked like any other."""
    wanted = getattr(config, "auto_map", {}).get(_AUTO_CLASS)
    if wanted is not None:
        made = get_class_from_dynamic_module(wanted, name)
        AutoModelForCausalLM.register(type(config), made, exist_ok=True)
