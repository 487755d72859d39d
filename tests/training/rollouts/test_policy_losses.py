"""Losses and advantages of policy optimisation equal those of TRL's own trainers."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer as UpstreamGRPO
from trl.trainer.rloo_trainer import RLOOTrainer as UpstreamRLOO
from trl.trainer.utils import nanstd

from studio.methods.grpo import LossName, Policy
from studio.methods.grpo.losses import answer_weights, policy_loss
from studio.methods.rloo import RLOOPolicy
from studio.methods.rloo.trainer import policy_loss as rloo_loss
from studio.training.rollouts.advantages import (
    group_advantages,
    leave_one_out_advantages,
    spread,
)
from studio.training.rollouts.batches import AnswerWeights, PolicyLoss, PolicyTokens, place_logps

MAX_TOKENS = 9
ANSWERS, BATCHES = 6, 2
CASES = [
    (loss, level, beta)
    for loss, level, beta in product(get_args(LossName), ("token", "sequence"), (0.0, 0.3))
    if (loss, level) != ("cispo", "sequence")
]


def make_step(seed: int = 0) -> dict[str, Tensor]:
    """Return a step of answers of different lengths, written by a slightly older model."""
    dice = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([9, 4, 1, 7, 2, 9])
    logps = -torch.rand(ANSWERS, MAX_TOKENS, generator=dice) * 3
    return {
        "logps": logps,
        "old_logps": logps + 0.4 * torch.randn(logps.shape, generator=dice),
        "reference_logps": logps + 0.4 * torch.randn(logps.shape, generator=dice),
        "advantages": torch.randn(ANSWERS, generator=dice),
        "mask": torch.arange(MAX_TOKENS) < lengths[:, None],
    }


def upstream(trainer: Any, policy: Any, **values: object) -> Any:  # noqa: ANN401 -- untyped
    """Return an upstream trainer that was never built, but has what its loss reads."""
    made = trainer.__new__(trainer)
    settings = {
        "args": SimpleNamespace(
            delta=None, use_bias_correction_kl=True, steps_per_generation=BATCHES
        ),
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "beta": policy.beta,
        "epsilon_low": policy.epsilon,
        "epsilon_high": getattr(policy, "epsilon_high", policy.epsilon),
        "model": SimpleNamespace(training=True),
        "current_gradient_accumulation_steps": BATCHES,
        "max_completion_length": MAX_TOKENS,
        "accelerator": Accelerator(cpu=True),
        "_metrics": {"train": defaultdict(list)},
    }
    for name, value in (settings | values).items():
        setattr(made, name, value)
    return made


def upstream_loss(trainer: Any, step: dict[str, Tensor], rows: slice, **values: Tensor) -> Tensor:  # noqa: ANN401 -- untyped
    mask = step["mask"][rows].long()
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 0, dtype=torch.long),
        "prompt_mask": torch.zeros(len(mask), 0, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": step["advantages"][rows],
        "num_items_in_batch": step["mask"].sum(),
        **values,
    }
    trainer._get_per_token_logps_and_entropies = lambda *_args, **_rest: (
        step["logps"][rows],
        torch.zeros_like(step["logps"][rows]),
        None,
    )
    loss: Tensor = trainer._compute_loss(trainer.model, inputs)
    return loss


def total(losses: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(losses)).sum()


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call] # upstream is untyped


def parts() -> list[slice]:
    size = ANSWERS // BATCHES
    return [slice(start, start + size) for start in range(0, ANSWERS, size)]


def tokens_of(step: dict[str, Tensor], rows: slice, weights: Tensor, beta: float) -> PolicyTokens:
    return PolicyTokens(
        logps=step["logps"][rows],
        old_logps=step["old_logps"][rows],
        reference_logps=step["reference_logps"][rows] if beta else None,
        mask=step["mask"][rows],
        advantages=step["advantages"][rows],
        weights=weights[rows],
    )


def counts(step: dict[str, Tensor]) -> AnswerWeights:
    tokens = step["mask"].sum(dim=1).float()
    return AnswerWeights(
        tokens=tokens,
        tokens_in_batch=torch.cat(
            [tokens[rows].sum().expand(len(tokens[rows])) for rows in parts()]
        ),
        batches=BATCHES,
        max_tokens=MAX_TOKENS,
    )


@pytest.mark.parametrize(("loss", "level", "beta"), CASES)
def test_loss_of_step_equals_upstream(loss: LossName, level: Any, beta: float) -> None:  # noqa: ANN401 -- a literal
    high = 1.3 if loss == "cispo" else 0.28
    policy = Policy(loss_type=loss, importance_level=level, beta=beta, epsilon_high=high)
    step, same = make_step(), make_step()
    step["logps"].requires_grad_()
    same["logps"].requires_grad_()
    weights = answer_weights(counts(step), policy)
    theirs = upstream(UpstreamGRPO, policy, loss_type=loss, importance_sampling_level=level)

    ours = total(policy_loss(tokens_of(step, rows, weights, beta), policy).loss for rows in parts())
    expected = total(
        upstream_loss(
            theirs,
            same,
            rows,
            old_per_token_logps=same["old_logps"][rows],
            ref_per_token_logps=same["reference_logps"][rows],
        )
        for rows in parts()
    )
    backward(ours)
    backward(expected)

    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(step["logps"].grad, same["logps"].grad)


def test_rloo_loss_of_step_equals_upstream() -> None:
    policy = RLOOPolicy(beta=0.0)
    step, same = make_step(), make_step()
    step["logps"].requires_grad_()
    same["logps"].requires_grad_()
    weights = torch.full((ANSWERS,), 1 / ANSWERS)
    theirs = upstream(UpstreamRLOO, policy)

    ours = total(rloo_loss(tokens_of(step, rows, weights, 0), policy).loss for rows in parts())
    old = (same["old_logps"] * same["mask"]).sum(dim=1)
    expected = total(
        upstream_loss(theirs, same, rows, old_logps=old[rows]) / BATCHES for rows in parts()
    )
    backward(ours)
    backward(expected)

    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(step["logps"].grad, same["logps"].grad)


def test_clipped_tokens_get_no_gradient() -> None:
    policy, step = Policy(), make_step()
    step["logps"].requires_grad_()
    result: PolicyLoss = policy_loss(tokens_of(step, slice(None), torch.ones(ANSWERS), 0), policy)
    backward(result.loss)
    clipped = result.clipped & step["mask"]

    assert clipped.any()
    assert step["logps"].grad is not None
    assert (step["logps"].grad[clipped] == 0).all()
    assert (step["logps"].grad[step["mask"] & ~clipped] != 0).all()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_rewards_less_the_mean_of_their_group(scale: Any) -> None:  # noqa: ANN401 -- a literal
    rewards = torch.tensor([[0.0, 1.0, 0.5], [0.2, 0.2, 0.2], [1.0, torch.nan, 0.0]])
    centred = torch.tensor([[-0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, -0.5]])
    groups = torch.tensor([nanstd(row) for row in rewards])[:, None]
    divisor = {"group": groups + 1e-4, "batch": nanstd(rewards) + 1e-4, "none": 1.0}[scale]

    torch.testing.assert_close(group_advantages(rewards, scale), centred / divisor)


def test_leave_one_out_advantages_compare_with_the_others() -> None:
    rewards = torch.tensor([[0.0, 1.0, 0.5], [1.0, torch.nan, 0.4], [torch.nan, 0.3, torch.nan]])

    advantages = leave_one_out_advantages(rewards, normalise=False)
    normalised = leave_one_out_advantages(rewards, normalise=True)

    expected = torch.tensor([[-0.75, 0.75, 0.0], [0.6, 0.0, -0.6], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(advantages, expected)
    scored = normalised[:2][~rewards[:2].isnan()]
    assert float(scored.mean()) == pytest.approx(0, abs=1e-6)
    assert float(scored.std()) == pytest.approx(1, abs=1e-3)


def test_spread_of_one_score_is_zero() -> None:
    rewards = torch.tensor([[0.7, torch.nan], [torch.nan, torch.nan], [0.0, 1.0]])

    torch.testing.assert_close(
        spread(rewards, dim=1).nan_to_num(0.0), torch.tensor([[0.0], [0.0], [0.5**0.5]])
    )


def test_logps_stand_where_the_model_scores_them() -> None:
    placed = place_logps([[-1.0, -2.0], [-3.0]], [2, 1], 4)

    assert placed.tolist() == [[0.0, -1.0, -2.0], [-3.0, 0.0, 0.0]]
