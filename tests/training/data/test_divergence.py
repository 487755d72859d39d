"""The chunked divergence equals the plain formula in float64, and TRL's own function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

from studio.methods.distil import divergence
from studio.methods.distil.divergence import AnswerStates, Comparison, Divergence, OutputLayer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOKENS, VOCABULARY = 37, 101
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
TEMPERATURES = (0.5, 1.0, 3.0)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare in chunks of five tokens and tiles of 32 entries: neither divides the whole."""
    monkeypatch.setattr(divergence, "CPU_CHUNK_VALUES", 5 * VOCABULARY)
    monkeypatch.setattr(divergence, "_TILE_COLUMNS", 32)


def states(  # noqa: PLR0913 -- what a model may have
    seed: int,
    *,
    width: int = 16,
    rows: int = VOCABULARY,
    has_bias: bool = False,
    softcap: float | None = None,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> AnswerStates:
    torch.manual_seed(seed)
    weight = (torch.randn(rows, width) / 2).to(dtype)
    layer = OutputLayer(
        weight=nn.Parameter(weight),
        bias=nn.Parameter(torch.randn(rows).to(dtype)) if has_bias else None,
        scale=scale,
        softcap=softcap,
        dtype=dtype,
    )
    hidden = torch.randn(TOKENS, width).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(7))
    return AnswerStates(hidden=hidden, layer=layer, labels=labels)


def plain_logits(model: AnswerStates, tensors: tuple[Tensor, ...]) -> Tensor:
    hidden, weight, *bias = (tensor.double() for tensor in tensors)
    logits = (hidden @ weight.t() + sum(bias)) * model.layer.scale
    cap = model.layer.softcap
    return logits if cap is None else cap * (logits / cap).tanh()


def plain_divergence(own: Tensor, other: Tensor, beta: float) -> Tensor:
    """Return equation 1 of GKD, from probabilities."""
    student, teacher = own.softmax(-1), other.softmax(-1)
    if beta == 0:
        return (teacher * (teacher / student).log()).sum(-1)
    if beta == 1:
        return (student * (student / teacher).log()).sum(-1)
    mixture = beta * teacher + (1 - beta) * student
    of_teacher = (teacher * (teacher / mixture).log()).sum(-1)
    of_student = (student * (student / mixture).log()).sum(-1)
    return beta * of_teacher + (1 - beta) * of_student


def trained(model: AnswerStates) -> tuple[Tensor, ...]:
    bias = () if model.layer.bias is None else (model.layer.bias,)
    return (model.hidden, model.layer.weight, *bias)


def mixed_loss(found: Comparison) -> Tensor:
    """Weigh each token differently, so that a wrong order is noticed."""
    weights = torch.arange(1, TOKENS + 1) / TOKENS
    return (weights * found.divergence).sum() - 0.3 * (weights.flip(0) * found.log_probs).sum()


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        ({}, {"width": 24}),
        ({"has_bias": True, "softcap": 3.0, "scale": 0.7}, {"has_bias": True}),
        ({"softcap": 2.0}, {"softcap": 4.0, "scale": 1.5}),
    ],
    ids=["plain", "bias", "softcap"],
)
def test_values_and_gradients_are_those_of_the_plain_formula(
    student: dict[str, float], teacher: dict[str, float], beta: float, temperature: float
) -> None:
    own, other = states(1, **student), states(2, **teacher)  # type: ignore[arg-type] # any of them
    kind = Divergence(beta, temperature)

    found = divergence.compare(own, other, kind)
    gradients = torch.autograd.grad(mixed_loss(found), trained(own))

    logits, others = plain_logits(own, trained(own)), plain_logits(other, trained(other)).detach()
    expected = Comparison(
        plain_divergence(logits / temperature, others / temperature, beta),
        logits.log_softmax(-1)[torch.arange(TOKENS), own.labels],
        logits.argmax(-1) == own.labels,
        logits.argmax(-1) == others.argmax(-1),
    )
    torch.testing.assert_close(found.divergence.double(), expected.divergence, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(found.log_probs.double(), expected.log_probs, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.is_top1, expected.is_top1)
    assert torch.equal(found.agrees, expected.agrees)
    plain = torch.autograd.grad(mixed_loss(expected), trained(own))
    for ours, theirs in zip(gradients, plain, strict=True):
        # Small gradients carry the rounding errors of large ones, which depend on the processor.
        rounding = max(2e-6, 1e-6 * float(theirs.abs().max()))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=rounding)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("beta", BETAS)
def test_values_and_gradients_are_those_of_trl(beta: float, temperature: float) -> None:
    own, other = states(3), states(4)
    found = divergence.compare(own, other, Divergence(beta, temperature)).divergence
    (ours,) = torch.autograd.grad(found.sum(), [own.hidden])

    from trl.experimental.gkd import GKDTrainer  # noqa: PLC0415 -- it warns that it may change

    with torch.no_grad():
        logits = (plain_logits(own, trained(own)), plain_logits(other, trained(other)))
        gkd = GKDTrainer.generalized_jsd_loss(
            logits[0][None], logits[1][None], beta=beta, temperature=temperature, reduction="sum"
        )
    stable, _entropy = ChunkedDivergenceFunction.apply(
        own.hidden,
        own.layer.weight,
        None,
        other.hidden,
        other.layer.weight,
        None,
        beta,
        temperature,
    )
    (theirs,) = torch.autograd.grad(stable.sum(), [own.hidden])

    assert float(found.sum()) == pytest.approx(float(gkd), rel=1e-5)
    torch.testing.assert_close(found, stable, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("beta", BETAS)
def test_a_model_has_no_divergence_from_itself(beta: float) -> None:
    own = states(5)
    found = divergence.compare(own, states(5), Divergence(beta, 1.0))
    (gradient,) = torch.autograd.grad(found.divergence.sum(), [own.hidden])

    assert float(found.divergence.abs().max()) < 1e-6
    assert float(gradient.abs().max()) < 1e-6
    assert bool(found.agrees.all())


@pytest.mark.parametrize("padded", ["student", "teacher"])
def test_padding_of_a_vocabulary_does_not_count(padded: str) -> None:
    wide = states(6, rows=VOCABULARY + 27)
    narrow = replace(wide, layer=wide.layer.first_rows(VOCABULARY))
    other = states(7)
    kind = Divergence(0.5, 1.0)
    pairs = [(wide, other), (narrow, other)]
    if padded == "teacher":
        pairs = [(model, own) for own, model in pairs]
    found, expected = (divergence.compare(*pair, kind) for pair in pairs)
    of_weight, of_narrow = (
        torch.autograd.grad(result.divergence.sum(), [pair[0].layer.weight])[0]
        for result, pair in zip((found, expected), pairs, strict=True)
    )

    assert torch.equal(found.divergence, expected.divergence)
    assert torch.equal(of_weight[:VOCABULARY], of_narrow[:VOCABULARY])
    assert not of_weight[VOCABULARY:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_in_float32_whatever_the_weights_are_in(dtype: torch.dtype) -> None:
    """Only the weights and hidden states are rounded: logits never are."""
    own, other = states(8, dtype=dtype), states(9, dtype=dtype)
    wide = [
        replace(
            model,
            hidden=model.hidden.detach().float(),
            layer=replace(model.layer, weight=model.layer.weight.float(), dtype=torch.float32),
        )
        for model in (own, other)
    ]
    kind = Divergence(1.0, 1.0)
    found = divergence.compare(own, other, kind)
    exact = divergence.compare(wide[0], wide[1], kind)

    assert found.divergence.dtype is torch.float32
    torch.testing.assert_close(found.divergence, exact.divergence, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.divergence.sum(), [own.layer.weight])
    assert gradient.dtype is dtype


def test_no_answer_token_gives_zero_with_a_gradient() -> None:
    own, other = states(10), states(11)
    none = [
        replace(model, hidden=model.hidden[:0], labels=model.labels[:0]) for model in (own, other)
    ]
    found = divergence.compare(none[0], none[1], Divergence(0.5, 1.0))
    (gradient,) = torch.autograd.grad(found.divergence.sum(), [own.layer.weight])

    assert len(found.divergence) == 0
    assert not gradient.any()


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call] # upstream is untyped
    """Remembers the size of the largest tensor that an operation gives."""

    values = 0

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        result = function(*args, **(kwargs or {}))
        sizes = (tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, Tensor))
        self.values = max(self.values, *sizes, 0)
        return result


@pytest.mark.parametrize("beta", BETAS)
def test_no_tensor_is_larger_than_a_chunk(beta: float) -> None:
    own, other = states(12), states(13)
    with LargestTensor() as watched:  # type: ignore[no-untyped-call] # upstream is untyped
        found = divergence.compare(own, other, Divergence(beta, 1.0))
        torch.autograd.grad(mixed_loss(found), trained(own))

    largest_weight = own.layer.weight.numel()
    assert watched.values <= max(5 * VOCABULARY, largest_weight) < TOKENS * VOCABULARY
