"""How well vectors find what belongs together: each first text searches all second texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor

BEST = 10
"""How many results count."""
_CHUNK = 512
"""Searches that are computed at a time."""
_MATCHES = 0.5
"""The gain from which a text matches, if matches are graded."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """How good the results of all searches are, on average."""

    ndcg: float
    mrr: float
    top1: float


def measure(
    anchors: Tensor, positives: Tensor, keys: Sequence[Sequence[int]], gains: Sequence[float]
) -> Ranking:
    """Return how well anchors find the positives of their rows.

    `keys` say which texts are equal: each is searched for once, and found once. A gain is 1 for a
    match, or less for a text that is similar only in part. Vectors have the shape (rows, width).
    """
    wanted: dict[int, dict[int, float]] = {}
    for (anchor, positive), gain in zip(keys, gains, strict=True):
        own = wanted.setdefault(anchor, {})
        own[positive] = max(gain, own.get(positive, 0.0))
    firsts = _first_places([anchor for anchor, _ in keys])
    places = _first_places([positive for _, positive in keys])
    passages, found = positives[list(places.values())], list[list[int]]()
    searches = anchors[list(firsts.values())]
    for chunk in torch.split(searches, _CHUNK):
        best = (chunk @ passages.T).topk(min(BEST, len(passages)), dim=-1)
        found += best.indices.tolist()
    named = list(places)
    graded = [
        ([wanted[anchor].get(named[place], 0.0) for place in row], wanted[anchor])
        for anchor, row in zip(firsts, found, strict=True)
    ]
    return average(graded)


def average(graded: Sequence[tuple[Sequence[float], Mapping[int, float]]]) -> Ranking:
    """Return the means over searches, each given by the gains of its results, and all that exist.

    Searches without a match count only where they can be right.
    """
    ndcg = [dcg(gains) / dcg(ideal(own)) for gains, own in graded if any(own.values())]
    ranks = [first_match(gains) for gains, own in graded if max(own.values()) > _MATCHES]
    return Ranking(
        ndcg=_mean(ndcg),
        mrr=_mean([1 / rank if rank else 0.0 for rank in ranks]),
        top1=_mean([float(rank == 1) for rank in ranks]),
    )


def dcg(gains: Sequence[float]) -> float:
    """Return the discounted gain of results, the first one first."""
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, 1))


def ideal(gains: Mapping[int, float]) -> list[float]:
    """Return the gains of the best results that a search could have."""
    return sorted(gains.values(), reverse=True)[:BEST]


def first_match(gains: Sequence[float]) -> int:
    """Return the rank of the first match, from 1; 0 if there is none."""
    return next((rank for rank, gain in enumerate(gains, 1) if gain > _MATCHES), 0)


def to_gains(scores: Tensor) -> Tensor:
    """Return the gain of each row: 1 for a match, and scores between 0 and 1 by their range."""
    known = scores[~scores.isnan()]
    if not len(known):
        return torch.ones_like(scores)
    low, high = known.min(), known.max()
    if low == high:
        return torch.ones_like(scores)
    return torch.where(scores.isnan(), 1.0, (scores - low) / (high - low))


def _first_places(keys: Sequence[int]) -> dict[int, int]:
    """Return where each key occurs first."""
    return {key: place for place, key in reversed(list(enumerate(keys)))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
