"""Tokens that a run adds to a model's vocabulary.

A new token starts as the mean of the tokens that its text was made of before, in both tables: the
model reads and writes it nearly as it did, and training goes on from there.
"""

from collections.abc import Mapping, Sequence

import torch
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import TrainingError

Pieces = Mapping[int, Sequence[int]]
"""For each new token, the tokens that its text was made of before."""


def add(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Pieces:
    """Add tokens to a tokenizer, and return what each was made of.

    Raises:
        TrainingError: the tokenizer has one of them already.

    """
    before = {text: tokenizer.encode(text, add_special_tokens=False) for text in texts}
    known = tokenizer.get_vocab()
    if existing := [text for text in texts if text in known]:
        raise TrainingError(
            "conflict",
            f"This model's tokenizer already has the token {existing[0]}.",
            hint="Leave it out of the new tokens.",
        )
    if texts:
        tokenizer.add_tokens(list(texts))
    return {tokenizer.convert_tokens_to_ids(text): pieces for text, pieces in before.items()}


@torch.no_grad()
def extend(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pieces: Pieces) -> int:
    """Give a model's tables the rows of new tokens, each the mean of its pieces.

    Return how many rows they had before.
    """
    before: int = model.get_input_embeddings().num_embeddings
    if not pieces:
        return before
    resize(model, len(tokenizer))
    for weight in _tables(model):
        for token, parts in pieces.items():
            weight[token] = weight[list(parts)].float().mean(0).to(weight)
    return before


def resize(model: PreTrainedModel, tokens: int) -> None:
    """Give a model's tables at least as many rows as there are tokens."""
    if tokens > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(tokens, mean_resizing=False)


def complete_head(model: PreTrainedModel) -> None:
    """Give an output layer whose rows are trained the attribute that upstream's fused head reads.

    Raises:
        TrainingError: it has a bias, which peft leaves out of the scores.

    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, TrainableTokensWrapper):
        return
    if layer.original_module.bias is not None:
        raise TrainingError(
            "conflict",
            "The output layer of this model has a bias, so its rows cannot be trained alone.",
            hint="Train the embeddings, too, or leave the new tokens empty.",
        )
    layer.bias = None


def _tables(model: PreTrainedModel) -> list[Tensor]:
    """Return the weights with a row for each token; a shared one is there once."""
    layers: list[nn.Module | None] = [model.get_input_embeddings(), model.get_output_embeddings()]
    weights = [weight for layer in layers if layer is not None for weight in layer.parameters()]
    return [weight.data for weight in {id(weight): weight for weight in weights}.values()]
