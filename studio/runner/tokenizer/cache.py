"""Tokenizers that stay loaded: the four that were asked for last, as long as their files do."""

import signal
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.protocols.tokenizer_service import RowLengths, TokenizerRequest
from studio.training.models import tokenizers

MAX_TOKENIZERS = 4

LOAD_SECONDS = 20
"""A tokenizer that takes longer to load takes the whole desk with it, and the next one is new."""

MAX_FILE_BYTES = 256 * 2**20
"""No tokenizer's file is larger."""

_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")

MAX_WINDOWS = 64
"""Of how many windows of rows the sizes are remembered for each tokenizer."""

_FileState = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _CachedTokenizer:
    state: _FileState
    tokenizer: PreTrainedTokenizerBase
    sizes: OrderedDict[Hashable, RowLengths] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class TokenizerCache:
    _cached: OrderedDict[str, _CachedTokenizer] = field(default_factory=OrderedDict)

    def get(self, model: str) -> PreTrainedTokenizerBase | None:
        """Return a model's tokenizer if it is here, and its files are what they were."""
        known = self._cached.pop(model, None)
        if known is None or known.state != _file_state(model):
            return None
        self._cached[model] = known
        return known.tokenizer

    def sizes(self, asked: TokenizerRequest) -> RowLengths | None:
        """Return those of the rows that a row may be packed with, if they have been told."""
        return self._cached[asked.model].sizes.get(_window_key(asked))

    def store_sizes(self, asked: TokenizerRequest, sizes: RowLengths) -> None:
        """Keep what a child has told of a tokenizer that is here."""
        known = self._cached[asked.model].sizes
        known[_window_key(asked)] = sizes
        if len(known) > MAX_WINDOWS:
            known.popitem(last=False)

    def add(self, model: str) -> None:
        """Load a tokenizer to stay. Only one that a child has loaded safely may be."""
        state = _file_state(model)
        signal.alarm(LOAD_SECONDS)
        try:
            self._cached[model] = _CachedTokenizer(state, load_tokenizer(model))
        finally:
            signal.alarm(0)
        if len(self._cached) > MAX_TOKENIZERS:
            self._cached.popitem(last=False)


def load_tokenizer(model: str, code: str = "") -> PreTrainedTokenizerBase:
    """Load a tokenizer, asking nobody; of its own code runs only what was allowed, by its hash.

    Raises:
        TrainingError: there is none here, or none that can be trained with.

    """
    if any(size > MAX_FILE_BYTES for *_, size in _file_state(model)):
        raise TrainingError(
            "model_not_found",
            "The model's tokenizer is too large to be looked at.",
            hint="No tokenizer's file is larger than 256 MiB.",
        )
    try:
        return tokenizers.load(model, code, offline=True)
    except (OSError, ValueError) as error:
        raise _missing_error(model) from error


def _window_key(asked: TokenizerRequest) -> Hashable:
    """Name rows by all that decides how long they are; the file of a version never changes."""
    return asked.chat_template, asked.window


def _file_state(model: str) -> _FileState:
    folder = Path(model)
    if not folder.is_absolute():
        return ()
    files = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)


def _missing_error(model: str) -> TrainingError:
    if not Path(model).is_absolute():
        return TrainingError(
            "model_not_found",
            f"{model} is not on this machine yet, so its tokenizer cannot be asked.",
            hint="Download the model first.",
        )
    return TrainingError(
        "model_not_found",
        "The model's folder has no tokenizer that can be read.",
        hint="Choose a model that comes with tokenizer.json.",
    )
