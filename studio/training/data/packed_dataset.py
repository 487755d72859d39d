"""Combine rows into packed examples, and verify that a model keeps them apart."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from studio.errors import TrainingError
from studio.training.data import packing, tokenisation
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.tokenisation import Examples

_PROBE_TOKENS = 8
"""Tokens in each of the two rows used to probe a model."""

_MAX_DEVIATION = 0.1
"""How far a row's logits may deviate from those it gets alone, as a share of their range.
Low-precision formats, scaled by everything in a batch, deviate by a few hundredths."""


@dataclass(frozen=True, slots=True)
class PackedDataset(Sequence[dict[str, Tensor]]):
    """Examples of several rows each, combined on access."""

    rows: Sequence[dict[str, Tensor]]
    packs: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:  # type: ignore[override] # no slices
        rows = [self.rows[row_index] for row_index in self.packs[index]]
        lengths = [len(row["input_ids"]) for row in rows]
        positions = torch.cat([torch.arange(length) for length in lengths])
        labels = torch.cat([row["labels"] for row in rows])
        # A row's last token must not predict the next row's first token.
        labels[positions == 0] = IGNORE_INDEX
        ids = torch.cat([row["input_ids"] for row in rows])
        return {"input_ids": ids, "labels": labels, "position_ids": positions}


def pack_examples(examples: Examples, limit: int) -> Examples:
    """Pack rows into examples of at most `limit` tokens; no single row is longer than that."""
    rows = tokenisation.row_tensors(examples.data)
    sizes = [len(row["input_ids"]) for row in rows]
    trained_counts = [int((row["labels"][1:] != IGNORE_INDEX).sum()) for row in rows]
    packs = packing.pack_rows([row.number for row in examples.rows], sizes, limit)
    return replace(
        examples,
        packs=packs,
        longest=max((sum(sizes[row_index] for row_index in pack) for pack in packs), default=0),
        longest_answer=max(
            (sum(trained_counts[row_index] for row_index in pack) for pack in packs), default=0
        ),
    )


def example_tensors(examples: Examples) -> Sequence[dict[str, Tensor]]:
    """Return what the model reads: rows, or packs of them."""
    rows = tokenisation.row_tensors(examples.data)
    return rows if examples.packs is None else PackedDataset(rows, examples.packs)


def refuse_cross_contamination(model: PreTrainedModel) -> None:
    """Check that a model keeps the rows of a packed example apart.

    Raises:
        TrainingError: a row's output depends on the row before it, or on its position.

    """
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    was_training = model.training
    model.eval()
    try:
        is_apart = takes_positions and _is_isolated(model)
    finally:
        model.train(was_training)
    if not is_apart:
        raise TrainingError(
            "conflict",
            f"A {model.config.model_type} model does not keep packed rows apart: each row "
            "would be read as a continuation of the one before.",
            hint='Turn off "Sequence packing".',
        )


def _is_isolated(model: PreTrainedModel) -> bool:
    """Whether the second of two rows gets the same logits as without the first."""
    ids = (
        torch.arange(3, 3 + 2 * _PROBE_TOKENS, device=model.device)[None] % model.config.vocab_size
    )
    positions = torch.arange(_PROBE_TOKENS, device=model.device).repeat(2)[None]
    embedded: list[Tensor] = []

    def watch(_layer: object, _given: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[0]

    hook = model.get_input_embeddings().register_forward_hook(watch)
    try:
        packed_logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    finally:
        hook.remove()
    second_logits = packed_logits[0, _PROBE_TOKENS:].float()
    (gradient,) = torch.autograd.grad(second_logits.square().sum(), embedded)
    with torch.no_grad():
        single_logits = model(input_ids=ids[:, _PROBE_TOKENS:], use_cache=False).logits[0].float()
    deviation = (second_logits - single_logits).abs().max() / (
        single_logits.max() - single_logits.min()
    )
    # What a mask hides has a gradient of exactly zero, in any format.
    return not gradient[0, :_PROBE_TOKENS].any() and bool(deviation < _MAX_DEVIATION)
