"""How far a student's probabilities of the next token are from its teacher's.

Both models' logits exist for one chunk of answer tokens at a time, in float32. The backward pass
computes them again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
from torch import Tensor

from studio.methods.distil import CPU_CHUNK_VALUES, GPU_CHUNK_VALUES

_TILE_COLUMNS = 4096
"""Vocabulary entries whose weights are cast at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLayer:
    """How a model's last hidden states become logits."""

    weight: Tensor
    """Shape (vocabulary, width)."""
    bias: Tensor | None
    """Shape (vocabulary,)."""
    scale: float
    """What logits are multiplied by."""
    softcap: float | None
    """What then squeezes them between minus and plus this, if anything."""
    dtype: torch.dtype
    """The format that products read."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits in float32: shape (tokens, width) to (tokens, vocabulary)."""
        read = hidden.to(self.dtype)
        values = torch.empty(len(hidden), len(self.weight), device=hidden.device)
        for columns, weight in self.tiles():
            values[:, columns] = _product(read, weight.t())
        if self.bias is not None:
            values += self.bias
        values *= self.scale
        return values if self.softcap is None else self.softcap * (values / self.softcap).tanh()

    def before(self, logits: Tensor, slope: Tensor) -> Tensor:
        """Return the gradient of what is scaled to logits, from theirs, in the products' format."""
        if self.softcap is not None:
            slope = slope * (1 - (logits / self.softcap).square())
        return (slope * self.scale).to(self.dtype)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield a few rows of the weight at a time, in the products' format."""
        for start in range(0, len(self.weight), _TILE_COLUMNS):
            columns = slice(start, min(start + _TILE_COLUMNS, len(self.weight)))
            yield columns, self.weight[columns].to(self.dtype)

    def first_rows(self, count: int) -> "OutputLayer":
        """Return the layer of the first tokens alone."""
        if count == len(self.weight):
            return self
        bias = None if self.bias is None else self.bias[:count]
        return replace(self, weight=self.weight[:count], bias=bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStates:
    """A model's last hidden states where it predicts answer tokens."""

    hidden: Tensor
    """Shape (tokens, width)."""
    layer: OutputLayer
    labels: Tensor
    """The answer tokens: shape (tokens,)."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How two distributions are compared."""

    beta: float
    """0 is forward KL, 1 reverse KL; between them, the generalised Jensen-Shannon divergence of
    GKD (arXiv:2306.13649, equation 1)."""
    temperature: float
    """What the logits of both models are divided by."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a student and its teacher say of each answer token: tensors of shape (tokens,)."""

    divergence: Tensor
    """In nats."""
    log_probs: Tensor
    """The student's log-probability of the answer token, at temperature 1."""
    is_top1: Tensor
    """Whether it is the student's most likely token."""
    agrees: Tensor
    """Whether both have the same most likely token."""


def compare(student: AnswerStates, teacher: AnswerStates, kind: Divergence) -> Comparison:
    """Compare two models on the same answer tokens; gradients flow to the student alone.

    Only tokens that both output layers have are compared: one of them may be padded.
    """
    shared = min(len(states.layer.weight) for states in (student, teacher))
    layers = tuple(states.layer.first_rows(shared) for states in (student, teacher))
    trained = student.hidden, layers[0].weight, layers[0].bias
    values = _Compare.apply(*trained, teacher.hidden, student.labels, layers, kind)  # type: ignore[no-untyped-call] # upstream is untyped
    return Comparison(*values)


def divergence_of(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the divergence of log-probabilities: shape (tokens, vocabulary) to (tokens,)."""
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    mixture = _mixture(student, teacher, beta)
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)


def divergence_slope(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the gradient of the divergence with respect to the student's logits.

    All tensors have the shape (tokens, vocabulary); those given are log-probabilities.
    """
    if beta == 0:
        return student.exp().sub_(teacher.exp())
    gap = student - (teacher if beta == 1 else _mixture(student, teacher, beta))
    share = student.exp()
    gap -= (share * gap).sum(-1, keepdim=True)
    return share.mul_(gap).mul_(1 if beta == 1 else 1 - beta)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(-1)


def _mixture(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(student + log(1 - beta), teacher + log(beta))


class _Compare(torch.autograd.Function):
    """Compares models chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 -- upstream adds attributes
        hidden: Tensor,
        _weight: Tensor,
        _bias: Tensor | None,
        teacher_hidden: Tensor,
        labels: Tensor,
        layers: tuple[OutputLayer, OutputLayer],
        kind: Divergence,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, teacher_hidden, labels)
        ctx.layers, ctx.kind = layers, kind
        with torch.autocast(hidden.device.type, enabled=False):
            chunks = [
                _compare_logits(
                    layers[0].logits(hidden[rows]),
                    layers[1].logits(teacher_hidden[rows]),
                    labels[rows],
                    kind,
                )
                for rows in _chunks(hidden, layers[0])
            ]
        values = tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
        ctx.mark_non_differentiable(*values[2:])
        return values

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 -- upstream adds attributes
        *slopes: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        hidden, teacher_hidden, labels = ctx.saved_tensors
        (layer, teacher_layer), kind = ctx.layers, ctx.kind
        trained = (hidden, layer.weight, layer.bias)
        gradients = [
            torch.zeros_like(tensor, dtype=torch.float32) if is_needed else None
            for tensor, is_needed in zip(trained, ctx.needs_input_grad, strict=False)
        ]
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(hidden, layer):
                slope = _slope(
                    layer.logits(hidden[rows]),
                    teacher_layer.logits(teacher_hidden[rows]),
                    labels[rows],
                    tuple(None if of is None else of[rows, None] for of in slopes),
                    (layer, kind),
                )
                _add_products(gradients, hidden, rows, layer, slope)
                del slope
        cast = (
            None if gradient is None else gradient.to(tensor.dtype)
            for tensor, gradient in zip(trained, gradients, strict=True)
        )
        return (*cast, None, None, None, None)


def _chunks(hidden: Tensor, layer: OutputLayer) -> Iterator[slice]:
    """Yield a few tokens at a time; without any, none once."""
    values = GPU_CHUNK_VALUES if hidden.is_cuda else CPU_CHUNK_VALUES
    size = max(1, values // len(layer.weight))
    for start in range(0, max(1, len(hidden)), size):
        yield slice(start, start + size)


def _compare_logits(
    own: Tensor, other: Tensor, labels: Tensor, kind: Divergence
) -> tuple[Tensor, ...]:
    """Return the fields of a comparison for one chunk."""
    top = own.argmax(-1)
    is_top1, agrees = top == labels, top == other.argmax(-1)
    log_probs = own.gather(-1, labels[:, None]).squeeze(-1) - own.logsumexp(-1)
    # Reassigned, so that the logits are freed.
    own, other = _tempered(own, kind), _tempered(other, kind)
    return divergence_of(own, other, kind.beta), log_probs, is_top1, agrees


def _slope(
    own: Tensor,
    other: Tensor,
    labels: Tensor,
    slopes: tuple[Tensor | None, ...],
    how: tuple[OutputLayer, Divergence],
) -> Tensor:
    """Return the gradient of what the student's output layer multiplies, for one chunk.

    `slopes` has the gradients of divergences and log-probabilities: shapes (tokens, 1).
    """
    (layer, kind), (of_divergence, of_log_probs, *_others) = how, slopes
    slope = torch.zeros(()).to(own)
    if of_divergence is not None:
        # Reassigned, so that the logits are freed.
        other = _tempered(other, kind)
        slope = divergence_slope(_tempered(own, kind), other, kind.beta)
        slope *= of_divergence / kind.temperature
    if of_log_probs is not None:
        slope = slope - own.softmax(-1).mul_(of_log_probs)
        slope.scatter_add_(-1, labels[:, None], of_log_probs)
    return layer.before(own, slope)


def _tempered(logits: Tensor, kind: Divergence) -> Tensor:
    """Return log-probabilities at the temperature."""
    return (logits / kind.temperature).log_softmax(-1)


def _add_products(
    gradients: list[Tensor | None], hidden: Tensor, rows: slice, layer: OutputLayer, slope: Tensor
) -> None:
    """Add what one chunk contributes to the gradients of hidden states, weight and bias."""
    of_hidden, of_weight, of_bias = gradients
    read = hidden[rows].to(layer.dtype)
    for columns, weight in layer.tiles():
        part = slope[:, columns]
        if of_hidden is not None:
            of_hidden[rows] += _product(part, weight)
        if of_weight is not None:
            of_weight[columns] += _product(part.t(), read)
    if of_bias is not None:
        of_bias += slope.sum(0, dtype=torch.float32)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices of one format, with the result in float32."""
    if left.is_cuda and left.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
