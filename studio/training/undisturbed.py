"""Using a model between training steps, without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Use a model between training steps and leave no trace: no gradient, no dropout, no dice."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        model.train(training)
