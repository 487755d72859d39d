"""Each loss of rated answers equals that of TRL's own trainer, or its definition."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM
from trl import KTOConfig, KTOTrainer

from studio.methods.kto.losses import LOSSES, RatedAnswers, balanced_weights
from studio.training.reference_trainer import score_sequences
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BETA = 0.3
ROWS = [
    {"prompt": "1 plus 1?", "completion": " It is 2.", "label": True},
    {"prompt": "2 plus 1?", "completion": " It is three, I think.", "label": True},
    {"prompt": "3 plus 1?", "completion": " It is many.", "label": False},
]


@pytest.fixture
def trainer(loss: str, tmp_path: Path) -> KTOTrainer:
    """Return upstream's trainer, with a model that differs from its reference."""
    folder = tiny.write_model(tmp_path / "model", tiny.llama())
    model, reference = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    config = KTOConfig(
        output_dir=str(tmp_path / "run"),
        loss_type=loss,
        beta=BETA,
        desirable_weight=1.5,
        undesirable_weight=0.5,
        per_device_train_batch_size=len(ROWS),
        train_sampling_strategy="sequential",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    return KTOTrainer(
        model=model,
        ref_model=reference,
        args=config,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tiny.tokenizer(),
    )


def ratios(trainer: KTOTrainer, batch: dict[str, Tensor], prefix: str = "") -> Tensor:
    """Return how much more likely each answer is than under the reference."""
    labels = batch[f"{prefix}input_ids"].masked_fill(batch[f"{prefix}completion_mask"] == 0, -100)
    inputs = {
        "input_ids": batch[f"{prefix}input_ids"],
        "attention_mask": batch[f"{prefix}attention_mask"],
        "labels": labels,
    }
    with torch.no_grad():
        own, reference = (
            score_sequences(model, inputs).logps for model in (trainer.model, trainer.ref_model)
        )
    return own - reference


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_loss_equals_upstream(loss: str, trainer: KTOTrainer) -> None:
    batch = next(iter(trainer.get_train_dataloader()))
    expected = trainer.compute_loss(trainer.model, dict(batch))

    divergence = ratios(trainer, batch, "KL_").mean().clamp(min=0) if loss == "kto" else 0.0
    is_good = batch["label"].float()
    answers = RatedAnswers(
        rewards=BETA * ratios(trainer, batch),
        is_good=is_good,
        divergence=BETA * divergence,
        baseline=0.0,
    )
    weights = is_good * 1.5 + (1 - is_good) * 0.5
    found = (weights * LOSSES[loss](answers)).mean()  # type: ignore[index] # a name from the list

    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    assert float(divergence) > 0 or loss != "kto"


def test_bco_compares_with_the_mean_reward() -> None:
    """Equation 9 of arXiv:2404.04656: a classifier of the reward minus the mean."""
    rewards, mean = torch.tensor([0.5, -1.0, 2.0]), torch.tensor(0.25)
    is_good = torch.tensor([1.0, 0.0, 0.0])
    answers = RatedAnswers(rewards=rewards, is_good=is_good, divergence=9.0, baseline=mean)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        rewards - mean, is_good, reduction="none"
    )

    assert LOSSES["bco"](answers).tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_raises_good_answers_and_lowers_bad_ones(loss: str) -> None:
    rewards = torch.zeros(2, requires_grad=True)
    answers = RatedAnswers(
        rewards=rewards, is_good=torch.tensor([1.0, 0.0]), divergence=0.0, baseline=0.0
    )
    total = LOSSES[loss](answers).sum()  # type: ignore[index] # a name from the list
    good, bad = torch.autograd.grad(total, rewards)[0].tolist()

    assert good < 0 < bad


@pytest.mark.parametrize(
    ("good", "bad", "weights"), [(1, 1, (1, 1)), (1, 4, (4, 1)), (30, 10, (1, 3))]
)
def test_balanced_weights_let_both_ratings_count_equally(
    good: int, bad: int, weights: tuple[float, float]
) -> None:
    found = balanced_weights(good, bad)

    assert found == weights
    assert good * found[0] == bad * found[1]
