"""Each preference loss equals that of TRL's own trainers, and moves a pair the right way."""

from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer

from studio.methods.dpo import ANY_DIVERGENCE, REFERENCE_FREE, LossName, Preference
from studio.methods.dpo.losses import LOSSES, Answers, preference_loss
from studio.methods.dpo.trainer import length_weights
from studio.training.reference_trainer import WeighTokens, score_sequences
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMOOTHED = ("robust", "exo_pair", "aot", "aot_unpaired")
WITH_REFERENCE = [name for name in LOSSES if name not in REFERENCE_FREE]


def spec(loss: str, **changes: float) -> Preference:
    smoothing = 0.1 if loss in SMOOTHED else 0.0
    return Preference.model_validate({"loss_type": loss, "label_smoothing": smoothing} | changes)


def loss_of(loss: Preference, logps: Tensor, reference: Tensor, tokens: Tensor) -> Tensor:
    """Return the loss of pairs whose chosen answers come first."""
    chosen, rejected = (
        Answers(logps=part[0], reference=part[1], tokens=part[2])
        for part in zip(logps.chunk(2), reference.chunk(2), tokens.chunk(2), strict=True)
    )
    return preference_loss(chosen, rejected, loss)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return two different models: the one that trains, and its reference."""
    folder = tiny.write_model(tmp_path_factory.mktemp("model"), tiny.llama())
    model, reference = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    return model, reference


def upstream_trainer(
    models: tuple[PreTrainedModel, PreTrainedModel],
    loss: str,
    folder: Path,
    **changes: Any,  # noqa: ANN401 -- any setting of upstream
) -> DPOTrainer:
    rows = [{"prompt": "1 plus 1?", "chosen": " It is 2.", "rejected": " It is three, I think."}]
    config = DPOConfig(
        output_dir=str(folder),
        loss_type=[loss],
        label_smoothing=spec(loss).label_smoothing,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **changes,
    )
    model, reference = models
    return DPOTrainer(
        model=model,
        ref_model=reference,
        args=config,
        train_dataset=Dataset.from_list(rows * 2),
        processing_class=tiny.tokenizer(),
    )


def batch_of_pairs() -> tuple[dict[str, Tensor], Tensor]:
    """Return a batch as upstream collates it, and the labels of the same answers."""
    torch.manual_seed(0)
    ids = torch.randint(5, 300, (8, 12))
    completion = torch.zeros_like(ids)
    for row, (start, end) in enumerate(zip((4,) * 8, (12, 9, 7, 10, 8, 12, 11, 6), strict=True)):
        completion[row, start:end] = 1
    mask = (torch.arange(12) < 4).long() | completion
    batch = {"input_ids": ids, "attention_mask": mask, "completion_mask": completion}
    return batch, ids.masked_fill(completion == 0, -100)


def log_probabilities(model: PreTrainedModel, batch: dict[str, Tensor], labels: Tensor) -> Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    chosen = logits[:, :-1].log_softmax(-1)
    picked = chosen.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0]
    total: Tensor = (picked * (labels[:, 1:] != -100)).sum(1)
    return total


@pytest.mark.parametrize("loss", WITH_REFERENCE)
def test_loss_equals_that_of_upstream_trainer(
    models: tuple[PreTrainedModel, PreTrainedModel], loss: str, tmp_path: Path
) -> None:
    trainer = upstream_trainer(models, loss, tmp_path)
    batch, labels = batch_of_pairs()
    with torch.no_grad():
        expected = trainer._compute_loss(trainer.model, dict(batch), return_outputs=False)
        mine = log_probabilities(models[0], batch, labels)
        reference = log_probabilities(models[1], batch, labels)
    tokens = batch["completion_mask"].sum(1)

    found = loss_of(spec(loss), mine, reference, tokens).mean().item()
    assert found == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)


DIVERGENCES: dict[str, dict[str, Any]] = {
    "forward_kl": {"f_divergence_type": "forward_kl"},
    "js": {"f_divergence_type": "js_divergence"},
    "alpha": {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3},
}


@pytest.mark.parametrize("loss", sorted(ANY_DIVERGENCE))
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_divergence_equals_that_of_upstream(
    models: tuple[PreTrainedModel, PreTrainedModel], loss: str, divergence: str, tmp_path: Path
) -> None:
    trainer = upstream_trainer(models, loss, tmp_path, **DIVERGENCES[divergence])
    batch, labels = batch_of_pairs()
    with torch.no_grad():
        expected = trainer._compute_loss(trainer.model, dict(batch), return_outputs=False)
        mine = log_probabilities(models[0], batch, labels)
        reference = log_probabilities(models[1], batch, labels)
    own = {"divergence": divergence, "divergence_alpha": 0.3}
    preference = Preference.model_validate(spec(loss).model_dump() | own)

    found = loss_of(preference, mine, reference, batch["completion_mask"].sum(1)).mean().item()
    assert found == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "weigh"),
    [
        ({"ld_alpha": 0.3}, partial(length_weights, tail_weight=0.3)),
        ({"ld_alpha": 0.0}, partial(length_weights, tail_weight=0.0)),
        ({"use_weighting": True}, None),
    ],
    ids=["some of the extra length", "none of it", "confidence"],
)
def test_weights_equal_those_of_upstream(
    models: tuple[PreTrainedModel, PreTrainedModel],
    changes: dict[str, Any],
    weigh: WeighTokens | None,
    tmp_path: Path,
) -> None:
    trainer = upstream_trainer(models, "sigmoid", tmp_path, **changes)
    batch, labels = batch_of_pairs()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")} | {"labels": labels}
    with torch.no_grad():
        expected = trainer._compute_loss(trainer.model, dict(batch), return_outputs=False)
        own, other = (
            score_sequences(model, inputs, weigh) for model in (trainer.model, trainer.ref_model)
        )
    sure = own.confidence if "use_weighting" in changes else None
    pair = [
        Answers(
            logps=own.logps[part],
            reference=other.logps[part],
            tokens=own.tokens[part],
            confidence=None if sure is None else sure[part],
        )
        for part in (slice(None, 4), slice(4, None))
    ]

    found = preference_loss(pair[0], pair[1], spec("sigmoid")).mean().item()
    assert found == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    assert (sure is None) == (weigh is not None)


def test_only_what_goes_beyond_the_other_answer_counts_less() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 0]])

    assert length_weights(mask, 0.5).tolist() == [
        [0, 1, 0.5, 0.5, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 1, 0.5, 0.5, 0],
    ]


@pytest.mark.parametrize("loss", ["simpo", "cpo"])
def test_reference_free_loss_equals_upstream(loss: str) -> None:
    """Upstream's loss is a method of its trainer, which needs nothing else of it."""
    bare = CPOTrainer.__new__(CPOTrainer)
    args = CPOConfig(output_dir="x", simpo_gamma=1.0, report_to=[], use_cpu=True, bf16=False)
    bare.alpha, bare.beta, bare.label_smoothing = 0.0, 2.0, 0.0
    bare.simpo_gamma, bare.loss_type = args.simpo_gamma, "simpo" if loss == "simpo" else "sigmoid"
    bare.accelerator = type("Device", (), {"device": torch.device("cpu")})
    logps, tokens = torch.tensor([-8.0, -20.0, -9.0, -14.0]), torch.tensor([4.0, 8.0, 3.0, 9.0])
    given = logps / tokens if loss == "simpo" else logps
    expected, *_ = bare.cpo_loss(*given.chunk(2))

    settings = spec(loss, beta=2.0, target_margin=0.5)
    assert torch.allclose(loss_of(settings, logps, torch.zeros(4), tokens), expected)


def test_orpo_compares_odds() -> None:
    """Odds of 1:1 against 1:3 make a log odds ratio of log 3."""
    logps = torch.tensor([0.5, 0.25]).log() * 4
    found = loss_of(spec("orpo"), logps, torch.zeros(2), torch.tensor([4.0, 4.0]))

    expected = -0.1 * torch.nn.functional.logsigmoid(torch.tensor([3.0]).log())
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("loss", get_args(LossName))
def test_gradient_prefers_the_chosen_answer(loss: str) -> None:
    """A step against the gradient widens the margin; APO down lowers both answers while it does."""
    logps = torch.tensor([-8.0, -9.0, -8.5, -7.0], requires_grad=True)
    found = loss_of(spec(loss), logps, torch.full((4,), -8.0), torch.full((4,), 8.0))
    (gradient,) = torch.autograd.grad(found.mean(), logps)
    chosen, rejected = gradient.chunk(2)

    assert (rejected - chosen).sum() > 0
    assert bool((chosen > 0).all()) == (loss == "apo_down")


def test_sft_weight_adds_likelihood_of_the_chosen_answer() -> None:
    logps, tokens = torch.tensor([-8.0, -9.0]), torch.tensor([4.0, 3.0])
    plain, weighted = (
        loss_of(spec("sigmoid", sft_weight=weight), logps, torch.zeros(2), tokens)
        for weight in (0.0, 0.5)
    )

    assert weighted == plain + 0.5 * 2.0


def test_every_loss_of_the_recipe_exists() -> None:
    assert tuple(LOSSES) == get_args(LossName)
