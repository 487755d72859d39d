"""What models give for several texts that they read one by one: vectors, or scores."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from studio.protocols.inference_service import GenerationChunk, GenerationEnd, GenerationRequest
from studio.runner.inference.decoding import MAX_PADDED_TOKENS
from studio.training.evaluation.sample_answers import record_compute_formats
from studio.training.models.pooling import embed
from studio.training.models.token_types import read_pairs

_LINE_TEXTS = 16
"""The most texts whose values are on a line: a vector is at most some ten thousand bytes."""


def send_values(
    request: GenerationRequest,
    model: PreTrainedModel,
    send: Callable[[GenerationChunk], None],
    is_gone: Callable[[], bool],
) -> None:
    """Send what a model gives for each text, in their order, and then the end.

    Texts of similar length are computed together. A client that has gone is sent no more.
    """
    found: dict[int, str] = {}
    with torch.inference_mode(), record_compute_formats(model) as formats:
        for places in batches([len(ids) for ids in request.texts]):
            if is_gone():
                break
            values = _read(request, model, places)
            for place, numbers in zip(places, values.float().cpu().numpy(), strict=True):
                found[place] = b64encode(numbers.astype(np.dtype("<f4")).tobytes()).decode()
    in_order = [found[place] for place in sorted(found)]
    for start in range(0, len(in_order), _LINE_TEXTS):
        send(GenerationChunk(values=in_order[start : start + _LINE_TEXTS]))
    tokens = sum(map(len, request.texts))
    computed_in = " and ".join(sorted(formats))
    send(GenerationChunk(end=GenerationEnd(reason="stop", tokens=tokens, computed_in=computed_in)))


def batches(sizes: Sequence[int], limit: int = MAX_PADDED_TOKENS) -> Iterator[list[int]]:
    """Yield the places of texts that are computed together: at most `limit` tokens with padding."""
    batch: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        # The first of a batch is its longest.
        if batch and sizes[batch[0]] * (len(batch) + 1) > limit:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _read(request: GenerationRequest, model: PreTrainedModel, places: Sequence[int]) -> Tensor:
    """Return what the model gives for some of the texts: shape (texts, numbers)."""
    texts = [request.texts[place] for place in places]
    ids = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    batch = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
    if request.pooling:
        return embed(model, batch, request.pooling)
    types = [torch.tensor(request.types[place]) for place in places]
    batch["types"] = pad_sequence(types, batch_first=True).to(model.device)
    return read_pairs(model, model.config, batch).sigmoid()
