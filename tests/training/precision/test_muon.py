"""Muon for matrices and AdamW for the rest: each against its definition, and what gets which."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from studio.protocols.events import Failed, Started
from studio.training.precision.muon import MuonAdamW, matrix_ids
from tests.training import tiny
from tests.training.runs.test_optimisation_options import make_trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MUON = {"optimisation__optim": "muon"}
STEPS = 5


def gradients(shape: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for _ in range(STEPS)]


def take(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> Tensor:
    for gradient in gradients(tuple(weight.shape)):
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def start(*shape: int) -> nn.Parameter:
    return nn.Parameter(
        torch.linspace(-1, 1, 64).repeat(8)[: torch.Size(shape).numel()].view(shape)
    )


def test_matrices_follow_torch_and_others_follow_adamw() -> None:
    matrix, vector = start(8, 16), start(16)
    groups = [{"params": [matrix], "is_matrix": True}, {"params": [vector]}]
    ours = MuonAdamW(groups, lr=0.01, weight_decay=0.1)
    twins = start(8, 16), start(16)
    muon = torch.optim.Muon(
        [twins[0]], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", eps=1e-8
    )
    adamw = torch.optim.AdamW([twins[1]], lr=0.01, weight_decay=0.1)

    for one, two in zip(gradients((8, 16)), gradients((16,)), strict=True):
        matrix.grad, vector.grad = one, two
        ours.step()
    assert torch.equal(matrix, take(muon, twins[0]))
    torch.testing.assert_close(vector.detach(), take(adamw, twins[1]), rtol=1e-6, atol=1e-7)


def test_update_is_about_equally_large_in_every_direction() -> None:
    """Newton-Schulz leaves singular values between 0.68 and 1.14; AdamW's differ by thousands."""
    weight = nn.Parameter(torch.zeros(8, 16))
    weight.grad = torch.diag(torch.logspace(0, -2, 8)) @ torch.linalg.qr(torch.randn(16, 8))[0].T
    MuonAdamW([{"params": [weight], "is_matrix": True}], lr=1.0).step()
    singular = torch.linalg.svdvals(weight.detach()) / (0.2 * 16**0.5)

    assert singular.min() > 0.6
    assert singular.max() < 1.3


def test_only_matrices_of_layers_get_muon(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tiny.write_run(tmp_path / "run", model, **MUON))
    optimizer = trainer.create_optimizer()
    chosen = {id(p) for g in optimizer.param_groups if g["is_matrix"] for p in g["params"]}

    assert chosen == matrix_ids(trainer.model)
    assert {name for name, p in trainer.model.named_parameters() if id(p) in chosen} == {
        name
        for name, p in trainer.model.named_parameters()
        if ".layers." in name and name.endswith("proj.weight")
    }


def test_audit_says_that_updates_are_computed_in_bfloat16(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, **MUON)
    (started,) = tiny.events_of(run, Started)

    audit = started.resolved["audit"]
    assert audit["optimizer"] == "Muon (updates in bfloat16) and AdamW"
    assert audit["optimizer_states"] == "float32"


def test_adapter_is_refused(model: Path, tmp_path: Path) -> None:
    failed = tiny.last_event(tiny.train(tmp_path / "run", model, **MUON, adapter__kind="lora"))

    assert isinstance(failed, Failed)
    assert (failed.code, "none of them is trained" in failed.message) == ("conflict", True)
