"""What a ledger notes, of tensors whose bytes anyone can count."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from studio.training.memory.dry_run import AllocationLedger

KILO = 1000
NUMBER = 4
"""Bytes of a float32."""


def noted(work: Callable[[AllocationLedger], None]) -> dict[str, int]:
    ledger = AllocationLedger(selected_tokens=3, is_padded=True)
    with FakeTensorMode(), ledger:
        work(ledger)
    return ledger.peak_by_part()


def test_peak_counts_simultaneously_allocated_memory() -> None:
    def work(_ledger: AllocationLedger) -> None:
        first = torch.empty(KILO)
        second = first + 1
        del first
        _third = torch.empty(KILO // 2)
        del second

    assert noted(work) == {"activations": 2 * KILO * NUMBER}


def test_views_and_in_place_operations_allocate_nothing() -> None:
    def work(_ledger: AllocationLedger) -> None:
        whole = torch.empty(KILO)
        whole.view(10, 100).t().add_(1)

    assert noted(work) == {"activations": KILO * NUMBER}


def test_ledger_counts_memory_of_backward_pass() -> None:
    def work(ledger: AllocationLedger) -> None:
        layer = nn.Linear(100, 10, bias=False)
        ledger.label("weights", layer.parameters())
        ledger.reset()
        out = layer(torch.empty(5, 100)).exp()
        out.sum().backward()
        ledger.label("gradients", [one.grad for one in layer.parameters() if one.grad is not None])

    # The batch, the exponential, the sum, and its gradient on the way through the product.
    activations = (500 + 50 + 1 + 50 + 1) * NUMBER

    weights = gradients = 1000 * NUMBER
    assert noted(work) == {
        "weights": weights,
        "gradients": gradients,
        "activations": activations,
    }


def test_cast_weight_is_counted_as_copy() -> None:
    def work(ledger: AllocationLedger) -> None:
        weight = torch.empty(KILO)
        ledger.label("weights", [weight])
        _narrow = weight.bfloat16()

    assert noted(work) == {"weights": KILO * NUMBER, "copies": KILO * NUMBER // 2}


@pytest.mark.parametrize("is_fake", [True, False])
def test_boolean_mask_selects_number_of_answer_tokens(is_fake: bool) -> None:  # noqa: FBT001 -- a case
    found: list[Tensor] = []

    def work(_ledger: AllocationLedger) -> None:
        mask = torch.tensor([True, False, True, True])
        found.append(torch.ones(4, 2)[mask])

    if is_fake:
        noted(work)
    else:
        with AllocationLedger(selected_tokens=3, is_padded=True) as ledger:
            work(ledger)

    assert found[0].shape == (3, 2)
