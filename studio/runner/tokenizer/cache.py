"""A cache of the four tokenizers used last, valid while their files are unchanged."""

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
"""If loading takes longer, an alarm kills the whole service, and a new one starts."""

MAX_FILE_BYTES = 256 * 2**20
"""Larger tokenizer files are refused."""

_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")

MAX_WINDOWS = 64
"""Number of row windows whose row lengths are cached for each tokenizer."""

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
        """Return a model's tokenizer if it is cached and its files are unchanged."""
        entry = self._cached.pop(model, None)
        if entry is None or entry.state != _file_state(model):
            return None
        self._cached[model] = entry
        return entry.tokenizer

    def sizes(self, request: TokenizerRequest) -> RowLengths | None:
        """Return the lengths of the rows that a row may be packed with, if they are cached."""
        return self._cached[request.model].sizes.get(_window_key(request))

    def store_sizes(self, request: TokenizerRequest, sizes: RowLengths) -> None:
        """Cache the row lengths that a child measured with a cached tokenizer."""
        cached_sizes = self._cached[request.model].sizes
        cached_sizes[_window_key(request)] = sizes
        if len(cached_sizes) > MAX_WINDOWS:
            cached_sizes.popitem(last=False)

    def add(self, model: str) -> None:
        """Load a tokenizer into the cache. Call this only after a child has loaded it safely."""
        state = _file_state(model)
        signal.alarm(LOAD_SECONDS)
        try:
            self._cached[model] = _CachedTokenizer(state, load_tokenizer(model))
        finally:
            signal.alarm(0)
        if len(self._cached) > MAX_TOKENIZERS:
            self._cached.popitem(last=False)


def load_tokenizer(model: str, code: str = "") -> PreTrainedTokenizerBase:
    """Load a tokenizer offline; run its own code only if its hash was trusted.

    Raises:
        TrainingError: there is no tokenizer, or it cannot be used for training.

    """
    if any(size > MAX_FILE_BYTES for *_, size in _file_state(model)):
        raise TrainingError(
            "model_not_found",
            "The model's tokenizer is too large to load.",
            hint="No file of a tokenizer may exceed 256 MiB.",
        )
    try:
        return tokenizers.load(model, code, offline=True)
    except (OSError, ValueError) as error:
        raise _missing_error(model) from error


def _window_key(request: TokenizerRequest) -> Hashable:
    """Identify rows by all that decides their length; the file of a version never changes."""
    return request.chat_template, request.window


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
            f"{model} has not been downloaded, so its tokenizer is not available.",
            hint="Download the model first.",
        )
    return TrainingError(
        "model_not_found",
        "The model's folder has no usable tokenizer.",
        hint="Choose a model that comes with tokenizer.json.",
    )
