"""Run a model's own code only from its own folder, and only if it matches the trusted hash."""

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from studio.errors import InvalidError, TrainingError
from studio.weights import model_files as brought

_AUTO_CLASS = "AutoModelForCausalLM"


def is_allowed(name: str, code: str) -> bool:
    """Return whether a model's own code may run; refuse it if it differs from what was trusted.

    Raises:
        TrainingError: the code has changed, or some of it is not in the model's folder.

    """
    folder = Path(name)
    if not code or not folder.is_absolute():
        return False
    try:
        model_code = brought.read(folder)
    except InvalidError as error:
        raise TrainingError("absurd_config", error.message, hint=error.hint) from error
    if not model_code.requested:
        return False
    if model_code.sha256 != code or model_code.external or model_code.missing_files:
        raise TrainingError(
            "needs_remote_code",
            "This model's code has changed since it was allowed to run.",
            hint="Review it and allow it again on the model's page.",
        )
    return True


def register_model_class(name: str, config: PreTrainedConfig) -> None:
    """Register the class from a model's own code, so that it is found like any other."""
    class_reference = getattr(config, "auto_map", {}).get(_AUTO_CLASS)
    if class_reference is not None:
        model_class = get_class_from_dynamic_module(class_reference, name)
        AutoModelForCausalLM.register(type(config), model_class, exist_ok=True)
