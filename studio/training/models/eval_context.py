"""Use a model between training steps without side effects."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_WRAPPED_ATTRIBUTES = ("forward", "_original_forward")


@contextmanager
def keep_forward_wrappers(model: nn.Module) -> Iterator[None]:
    """Restore what training wrapped around a model, even if it was unwrapped in between.

    Accelerate's `unwrap_model` removes autocast permanently, and the loss's fused head with it.
    """
    wrappers = {name: vars(model)[name] for name in _WRAPPED_ATTRIBUTES if name in vars(model)}
    try:
        yield
    finally:
        for name in _WRAPPED_ATTRIBUTES:
            vars(model).pop(name, None)
        vars(model).update(wrappers)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluate without effects on training: no gradients, dropout or change of RNG state."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        model.train(training)
