"""What a trainer counts between two logging steps, kept on the device."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

_COUNTS = ("nonfinite", "nonfinite_losses")


class LossAccumulator:
    """Sums kept on the device, so that no training step waits for them."""

    SAVED_AS: ClassVar[str] = "Tally"
    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("_counts", "_loss", "_streak", "_nonfinite")

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(3, dtype=torch.long, device=device)
        self._loss = torch.zeros((), device=device)
        self._streak = torch.zeros((), dtype=torch.long, device=device)
        self._nonfinite = torch.zeros((), dtype=torch.long, device=device)

    def add(self, loss: Tensor, trained: Tensor, correct: Tensor, tokens: Tensor) -> None:
        loss = loss.detach()
        self._counts += torch.stack([trained, correct, tokens])
        self._loss += loss
        self._streak = torch.where(loss.isfinite(), 0, self._streak + 1)
        self._nonfinite += ~loss.isfinite()

    def read(self) -> dict[str, float]:
        """Return the sums since the last read, with a single device synchronisation."""
        parts = [self._counts, self._streak[None], self._nonfinite[None], self._loss[None]]
        numbers = torch.cat([part.double() for part in parts]).tolist()
        trained, correct, tokens, streak, nonfinite, loss = numbers
        self._counts.zero_()
        self._loss.zero_()
        return {
            "mean_loss": loss / max(trained, 1),
            "mean_token_accuracy": correct / max(trained, 1),
            "tokens": tokens,
            "nonfinite": streak,
            "nonfinite_losses": nonfinite,
        }


class SumAccumulator(LossAccumulator):
    """Named sums over the rows of batches, kept on the device."""

    STATE_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("_sums", "_streak", "_nonfinite")
    NAMES: ClassVar[tuple[str, ...]]
    """The names of the sums; the first is the loss's, and one is `tokens`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._sums = torch.zeros(len(self.NAMES), dtype=torch.double, device=device)

    def add_sums(self, loss: Tensor, others: Sequence[Tensor]) -> None:
        """Add the summed loss of a batch, and its values of the other names."""
        loss = loss.detach()
        self._sums += torch.stack([value.detach().double() for value in (loss, *others)])
        self._streak = torch.where(loss.isfinite(), 0, self._streak + 1)
        self._nonfinite += ~loss.isfinite()

    def read_sums(self) -> dict[str, float]:
        """Return what was summed since the last read, with a single device synchronisation."""
        counts = [self._streak[None].double(), self._nonfinite[None].double()]
        values = torch.cat([self._sums, *counts]).tolist()
        self._sums.zero_()
        return dict(zip((*self.NAMES, *_COUNTS), values, strict=True))

    def read_counts(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the sums that every method reports."""
        return {name: sums[name] for name in ("tokens", *_COUNTS)}
