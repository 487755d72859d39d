"""Count sampled weights, gradients, updates and activations by power of two."""

from collections.abc import Mapping

import torch
from torch import Tensor

from studio.protocols.events import MagnitudeHistogram, Quantity

_SAMPLED_OUTPUTS = 256
"""Numbers sampled from the output of each module."""

_LOWEST, _HIGHEST = -149, 127
"""The powers of two that float32 can hold."""
_NONFINITE = _HIGHEST - _LOWEST + 2
"""The bin of NaN and infinity; bin 0 counts zeros."""
_DIGITS = 6


class MagnitudeSampler:
    """Collects the outputs of modules in one step, and counts them with other numbers."""

    def __init__(self) -> None:
        self._outputs: dict[str, tuple[Tensor, int]] = {}

    def add_output(self, module: str, output: Tensor) -> None:
        """Sample an output. A module runs once per micro-batch; the first is enough.

        The sample is a copy: a view would keep the output in memory until the step ends.
        """
        if module not in self._outputs:
            stride = -(-output.numel() // _SAMPLED_OUTPUTS)
            sample = output.reshape(-1)[::stride].to(torch.float32, copy=True)
            self._outputs[module] = sample, stride

    def measure(
        self, samples: Mapping[Quantity, tuple[Tensor, Tensor]]
    ) -> dict[Quantity, MagnitudeHistogram]:
        """Count samples, given with how many numbers each stands for, and the outputs."""
        outputs: dict[Quantity, tuple[Tensor, Tensor]] = {}
        if self._outputs:
            values = [values for values, _stride in self._outputs.values()]
            strides = [torch.full_like(values, stride) for values, stride in self._outputs.values()]
            outputs["activations"] = torch.cat(values), torch.cat(strides)
        return {
            quantity: histogram
            for quantity, (values, shares) in {**samples, **outputs}.items()
            if (histogram := count_powers(values, shares)) is not None
        }


def count_powers(values: Tensor, shares: Tensor) -> MagnitudeHistogram | None:
    """Return the share of numbers at each power of two; None if there are none."""
    # On the CPU: on a GPU, weighted counts are not deterministic.
    values, shares = values.cpu(), shares.cpu().double()
    total = shares.sum().item()
    if not total:
        return None
    powers = torch.frexp(values.abs().double()).exponent - 1
    bins = powers.clamp(_LOWEST, _HIGHEST) - _LOWEST + 1
    bins = torch.where(values == 0, 0, torch.where(values.isfinite(), bins, _NONFINITE))
    counts = torch.bincount(bins.long(), weights=shares, minlength=_NONFINITE + 1) / total
    zero, *inside, nonfinite = [round(count, _DIGITS) for count in counts.tolist()]
    filled = [place for place, share in enumerate(inside) if share]
    first, last = (filled[0], filled[-1]) if filled else (0, -1)
    return MagnitudeHistogram(
        zero=zero, nonfinite=nonfinite, lowest=first + _LOWEST, shares=inside[first : last + 1]
    )
