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

KEPT = 4

LOAD_SECONDS = 20
"""A tokenizer that takes longer to load takes the whole desk with it, and the next one is new."""

LARGEST_BYTES = 256 * 2**20
"""No tokenizer's file is larger."""

_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")

WINDOWS = 64
"""Of how many windows of rows the sizes are remembered for each tokenizer."""

_State = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _Kept:
    state: _State
    tokenizer: PreTrainedTokenizerBase
    sizes: OrderedDict[Hashable, RowLengths] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class Shelf:
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)

    def find(self, model: str) -> PreTrainedTokenizerBase | None:
        """Return a model's tokenizer if it is here, and its files are what they were."""
        known = self._kept.pop(model, None)
        if known is None or known.state != _state(model):
            return None
        self._kept[model] = known
        return known.tokenizer

    def sizes(self, asked: TokenizerRequest) -> RowLengths | None:
        """Return those of the rows that a row may be packed with, if they have been told."""
        return self._kept[asked.model].sizes.get(_window(asked))

    def remember(self, asked: TokenizerRequest, sizes: RowLengths) -> None:
        """Keep what a child has told of a tokenizer that is here."""
        known = self._kept[asked.model].sizes
        known[_window(asked)] = sizes
        if len(known) > WINDOWS:
            known.popitem(last=False)

    def keep(self, model: str) -> None:
        """Load a tokenizer to stay. Only one that a child has loaded safely may be."""
        state = _state(model)
        signal.alarm(LOAD_SECONDS)
        try:
            self._kept[model] = _Kept(state, load(model))
        finally:
            signal.alarm(0)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def load(model: str, code: str = "") -> PreTrainedTokenizerBase:
    """Load a tokenizer, asking nobody; of its own code runs only what was allowed, by its hash.

    Raises:
        TrainingError: there is none here, or none that can be trained with.

    """
    if any(size > LARGEST_BYTES for *_, size in _state(model)):
        raise TrainingError(
            "model_not_found",
            "The model's tokenizer is too large to be looked at.",
            hint="No tokenizer's file is larger than 256 MiB.",
        )
    try:
        return tokenizers.load(model, code, offline=True)
    except (OSError, ValueError) as error:
        raise _missing(model) from error


def _window(asked: TokenizerRequest) -> Hashable:
    """Name rows by all that decides how long they are; the file of a version never changes."""
    return asked.chat_template, asked.window


def _state(model: str) -> _State:
    folder = Path(model)
    if not folder.is_absolute():
        return ()
    files = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)


def _missing(model: str) -> TrainingError:
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
