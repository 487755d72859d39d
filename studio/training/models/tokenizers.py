"""Load a model's tokenizer. Needs no torch."""

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.models import remote_code


def load(name: str, code: str = "", *, offline: bool = False) -> PreTrainedTokenizerBase:
    """Load a tokenizer that provides offsets, and set its padding token.

    Raises:
        OSError: there is no tokenizer; offline, none that was downloaded.
        TrainingError: the tokenizer cannot be used for training.

    """
    tokenizer = AutoTokenizer.from_pretrained(
        name, trust_remote_code=remote_code.is_allowed(name, code), local_files_only=offline
    )
    if not tokenizer.is_fast:
        raise TrainingError(
            "slow_tokenizer",
            "This model's tokenizer cannot map tokens to their position in the text.",
            hint="Use a version of the model that comes with tokenizer.json.",
        )
    if tokenizer.eos_token is None:
        raise TrainingError(
            "no_end_token",
            "This model's tokenizer has no end-of-text token, so answers could never end.",
            hint="Set eos_token in the model's tokenizer_config.json.",
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
