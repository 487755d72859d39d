"""Load a model's tokenizer. Needs no torch."""

from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import cached_file

from studio.errors import InvalidError, TrainingError
from studio.weights import image_text, model_files
from studio.weights.image_text import ImageTokens

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
        model_code = model_files.read(folder)
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


def load(name: str, code: str = "", *, offline: bool = False) -> PreTrainedTokenizerBase:
    """Load a tokenizer that provides offsets, and set its padding token.

    Raises:
        OSError: there is no tokenizer; offline, none that was downloaded.
        TrainingError: the tokenizer cannot be used for training.

    """
    tokenizer = AutoTokenizer.from_pretrained(
        name, trust_remote_code=is_allowed(name, code), local_files_only=offline
    )
    if not tokenizer.is_fast:
        raise TrainingError(
            "slow_tokenizer",
            "This model's tokenizer cannot map tokens to their position in the text.",
            hint="Use a version of the model that comes with tokenizer.json.",
        )
    if tokenizer.eos_token is None:
        # BERT's tokenizer ends each text with a token that it calls a separator.
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.eos_token is None:
        raise TrainingError(
            "no_end_token",
            "This model's tokenizer has no end-of-text token, so answers could never end.",
            hint="Set eos_token in the model's tokenizer_config.json.",
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    set_image_tokens(tokenizer, _read_image_tokens(name, offline=offline))
    return tokenizer


def set_image_tokens(tokenizer: PreTrainedTokenizerBase, tokens: ImageTokens | None) -> None:
    """Tell a tokenizer how many tokens an image is; its model reads none if that is None."""
    tokenizer.image_tokens = tokens


def set_base(
    tokenizer: PreTrainedTokenizerBase, folder: Path, base: Path, max_pixels: int | None
) -> None:
    """Tell a tokenizer how many tokens an image is, also if it is in an adapter's folder.

    Larger images are scaled to `max_pixels`.
    """
    tokens = image_tokens(tokenizer)
    if tokens is None and base.is_absolute():
        processor = image_text.read_image_processor(folder) or image_text.read_image_processor(base)
        config = image_text.read_json(base / "config.json")
        tokens = image_text.read(config, processor)
    if tokens is not None and max_pixels is not None:
        tokens = tokens.limited(max_pixels)
    set_image_tokens(tokenizer, tokens)


def image_tokens(tokenizer: PreTrainedTokenizerBase) -> ImageTokens | None:
    """Return how many tokens an image is for a tokenizer's model; None if it reads none."""
    tokens: ImageTokens | None = getattr(tokenizer, "image_tokens", None)
    return tokens


def _read_image_tokens(name: str, *, offline: bool) -> ImageTokens | None:
    folder = Path(name)
    if not folder.is_absolute():
        options: dict[str, Any] = {
            "local_files_only": offline,
            "_raise_exceptions_for_missing_entries": False,
            "_raise_exceptions_for_connection_errors": False,
        }
        config = cached_file(name, "config.json", **options)
        if config is None or image_text.family_of(image_text.read_json(Path(config))) is None:
            return None
        for file in (image_text.PROCESSOR_FILE, image_text.IMAGE_PROCESSOR_FILE):
            cached_file(name, file, **options)
        folder = Path(config).parent
    return image_text.read_folder(folder)
