"""What a model that gives numbers counts over texts, on the device."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from studio.training.accumulators import SumAccumulator


@dataclass(frozen=True, slots=True)
class Errors:
    """How near the model comes to each number: each of shape (numbers,), in the data's units."""

    rmse: Tensor
    mae: Tensor
    r2: Tensor
    spearman: Tensor
    mean: Tensor
    deviation: Tensor


def measure(given: Tensor, true: Tensor) -> Errors:
    """Return how near given numbers come to true ones: each of shape (texts, numbers).

    A correlation is 0 if all numbers are equal, and so is the R² of equal true numbers.
    """
    given, true = given.double(), true.double()
    errors, spread = given - true, true - true.mean(dim=0)
    total = spread.square().sum(dim=0)
    explained = 1 - errors.square().sum(dim=0) / total.clamp(min=torch.finfo(total.dtype).tiny)
    return Errors(
        rmse=errors.square().mean(dim=0).sqrt(),
        mae=errors.abs().mean(dim=0),
        r2=torch.where(total > 0, explained, 0.0),
        spearman=correlation(ranks(given), ranks(true)),
        mean=true.mean(dim=0),
        deviation=spread.square().mean(dim=0).sqrt(),
    )


def ranks(numbers: Tensor) -> Tensor:
    """Return the rank of each number in its column; equal ones share the mean of their ranks."""
    columns = []
    for column in numbers.unbind(dim=1):
        _values, places, counts = torch.unique(column, return_inverse=True, return_counts=True)
        last = counts.cumsum(dim=0).double()
        columns.append((last - (counts - 1) / 2)[places])
    return torch.stack(columns, dim=1)


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation of the columns; 0 if all numbers of one are equal."""
    first, second = first - first.mean(dim=0), second - second.mean(dim=0)
    norm = (first.square().sum(dim=0) * second.square().sum(dim=0)).sqrt()
    return torch.where(norm > 0, (first * second).sum(dim=0) / norm.clamp(min=1e-300), 0.0)


class NumberAccumulator(SumAccumulator):
    """Sums over texts; of a validation, also the numbers themselves."""

    SAVED_AS: ClassVar[str] = "NumberSums"
    NAMES: ClassVar[tuple[str, ...]] = ("loss", "tokens", "texts")

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._given: list[Tensor] = []
        self._true: list[Tensor] = []

    def add_texts(self, losses: Tensor, tokens: Tensor) -> None:
        """Add the losses of a batch: shape (texts,)."""
        self.add_sums(losses.sum(), [tokens, torch.ones_like(losses).sum()])

    def keep(self, given: Tensor, true: Tensor) -> None:
        """Keep the numbers of a batch, to compare them: each of shape (texts, numbers)."""
        self._given.append(given.detach())
        self._true.append(true)

    def errors(self) -> Errors:
        """Return how near the kept numbers are."""
        return measure(torch.cat(self._given).cpu(), torch.cat(self._true).cpu())

    def read(self) -> dict[str, float]:
        """Return the means since the last read."""
        sums = self.read_sums()
        found = {"mean_loss": sums["loss"] / max(sums["texts"], 1)}
        if self._given:
            errors = self.errors()
            found |= {"r2": float(errors.r2.mean()), "spearman": float(errors.spearman.mean())}
            if len(errors.r2) == 1:
                found |= {"rmse": float(errors.rmse), "mae": float(errors.mae)}
            self._given, self._true = [], []
        return self.read_counts(sums) | found
