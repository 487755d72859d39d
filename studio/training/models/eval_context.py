"""Using a model between training steps, without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_WRAPPED_ATTRIBUTES = ("forward", "_original_forward")


@contextmanager
def keep_forward_wrappers(model: nn.Module) -> Iterator[None]:
    """Put back what training has wrapped around a model, however it was unwrapped meanwhile.

    Accelerate's `unwrap_model` takes autocast off for good, and the loss's own head with it.
    """
    kept = {name: vars(model)[name] for name in _WRAPPED_ATTRIBUTES if name in vars(model)}
    try:
        yield
    finally:
        for name in _WRAPPED_ATTRIBUTES:
            vars(model).pop(name, None)
        vars(model).update(kept)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Use a model between training steps and leave no trace: no gradient, no dropout, no dice."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        model.train(training)
