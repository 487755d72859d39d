"""The losses of embeddings and the measures of retrieval, computed once more in plain Python."""

import math
from itertools import product
from math import exp, log, log2

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from studio.methods.embed import retrieval
from studio.methods.embed.losses import (
    PairVectors,
    cosent_loss,
    matryoshka,
    ranking_loss,
    triplet_loss,
)
from studio.training.models.pooling import pool, shorten

ROWS, WIDTH = 5, 8


def make_batch(owners: tuple[int, ...] = (), keys: tuple[int, ...] = ()) -> PairVectors:
    generator = torch.Generator().manual_seed(3)

    def draw(count: int) -> Tensor:
        return normalize(torch.randn(count, WIDTH, generator=generator), dim=-1)

    return PairVectors(
        anchors=draw(ROWS),
        positives=draw(ROWS),
        negatives=draw(len(owners)),
        owners=torch.tensor(owners, dtype=torch.long),
        keys=torch.tensor(keys or range(2 * ROWS + len(owners))),
        scores=torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0], dtype=torch.double),
    )


def cosine(one: Tensor, other: Tensor) -> float:
    return math.fsum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))


@pytest.mark.parametrize("owners", [(), (0, 0, 3)])
def test_ranking_is_a_choice_among_all_texts(owners: tuple[int, ...]) -> None:
    batch = make_batch(owners)
    candidates = [*batch.positives, *batch.negatives]
    total = 0.0
    for place, anchor in enumerate(batch.anchors):
        scores = [20 * cosine(anchor, one) for one in candidates]
        total += log(sum(map(exp, scores))) - scores[place]

    assert float(ranking_loss(batch, 20)) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "left_out"),
    [
        # Rows 0 and 2 have the same positive: neither is wrong for the other.
        ((0, 1, 2, 3, 4, 10, 11, 10, 13, 14, 20), {(0, 2), (2, 0)}),
        # Rows 1 and 4 have the same anchor: both positives match both.
        ((0, 1, 2, 3, 1, 10, 11, 12, 13, 14, 20), {(1, 4), (4, 1)}),
        # The negative of another row is the positive of row 3.
        ((0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 13), {(3, 5)}),
        # The positive of row 0 is the anchor of row 1 itself.
        ((0, 10, 2, 3, 4, 10, 11, 12, 13, 14, 20), {(1, 0)}),
    ],
)
def test_equal_texts_are_no_false_negatives(
    keys: tuple[int, ...], left_out: set[tuple[int, int]]
) -> None:
    batch = make_batch((2,), keys)
    candidates = [*batch.positives, *batch.negatives]
    total = 0.0
    for place, anchor in enumerate(batch.anchors):
        scores = {
            number: 20 * cosine(anchor, one)
            for number, one in enumerate(candidates)
            if (place, number) not in left_out
        }
        total += log(sum(map(exp, scores.values()))) - scores[place]

    assert float(ranking_loss(batch, 20)) == pytest.approx(total, rel=1e-5)


def test_triplets_are_averaged_over_the_negatives_of_a_row() -> None:
    batch = make_batch((0, 1, 1, 2, 3, 4))
    by_row: dict[int, list[float]] = {}
    for owner, negative in zip(batch.owners.tolist(), batch.negatives, strict=True):
        anchor = batch.anchors[owner]
        margin = 0.3 + cosine(anchor, negative) - cosine(anchor, batch.positives[owner])
        by_row.setdefault(owner, []).append(max(0.0, margin))
    total = sum(sum(own) / len(own) for own in by_row.values())

    assert float(triplet_loss(batch, 0.3)) == pytest.approx(total, rel=1e-5)


def test_cosent_compares_rows_whose_scores_differ() -> None:
    batch = make_batch()
    found = [cosine(*pair) for pair in zip(batch.anchors, batch.positives, strict=True)]
    scores = batch.scores.tolist()
    total = sum(
        exp(20 * (found[low] - found[high]))
        for low, high in product(range(ROWS), repeat=2)
        if scores[low] < scores[high]
    )

    assert float(cosent_loss(batch, 20)) == pytest.approx(ROWS * log(1 + total), rel=1e-5)


def test_cosent_of_equal_scores_is_nothing() -> None:
    batch = make_batch()
    equal = PairVectors(
        anchors=batch.anchors.requires_grad_(),
        positives=batch.positives,
        negatives=batch.negatives,
        owners=batch.owners,
        keys=batch.keys,
        scores=torch.ones(ROWS),
    )
    loss = cosent_loss(equal, 20)
    (gradient,) = torch.autograd.grad(loss, [equal.anchors])

    assert loss.item() == 0.0
    assert not bool(gradient.any())


def test_matryoshka_is_the_mean_over_lengths() -> None:
    batch = make_batch((1,))
    losses = [ranking_loss(one, 20) for one in (batch, batch.shortened(4), batch.shortened(2))]
    combined = matryoshka(lambda one: ranking_loss(one, 20), (4, 2))(batch)

    assert float(combined) == pytest.approx(sum(map(float, losses)) / 3, rel=1e-6)
    short = shorten(batch.anchors, 2)
    assert short.shape == (ROWS, 2)
    torch.testing.assert_close(short.norm(dim=-1), torch.ones(ROWS))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_padding_is_not_pooled(pooling: str) -> None:
    states = torch.randn(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    whole = pool(states, mask, pooling)  # type: ignore[arg-type] # one of three
    states[0, 2:] = 99.0

    torch.testing.assert_close(pool(states, mask, pooling), whole)  # type: ignore[arg-type] # the same
    alone = pool(states[:1, :2], mask[:1, :2], pooling)  # type: ignore[arg-type] # the same
    torch.testing.assert_close(alone[0], whole[0])


def make_keys(*pairs: tuple[str, str]) -> list[list[int]]:
    return [[hash(anchor), hash(positive)] for anchor, positive in pairs]


def test_retrieval_by_hand() -> None:
    """Three searches: found first, found third, and one with two matches at ranks 2 and 3."""
    anchors = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [0, 0, 1.0]])
    positives = torch.tensor([[0.9, 0.6, 0.7], [0.1, 0.2, 0.9], [0.2, 0.9, 0.8], [0.0, 0.1, 0.3]])
    keys = make_keys(("a", "A"), ("b", "B"), ("c", "C"), ("c", "D"))
    found = retrieval.measure(anchors, positives, keys, [1.0] * 4)
    # a: A .9 C .2 B .1 D .0; b: C .9 A .6 B .2 D .1; c: B .9 C .8 A .7 D .3
    ideal = 1 + 1 / log2(3)
    ndcg = [1.0, 1 / log2(4), (1 / log2(3) + 1 / log2(5)) / ideal]

    assert found.mrr == pytest.approx((1 + 1 / 3 + 1 / 2) / 3)
    assert found.top1 == pytest.approx(1 / 3)
    assert found.ndcg == pytest.approx(sum(ndcg) / 3)


def test_matches_beyond_the_tenth_are_not_found() -> None:
    vectors = torch.eye(12)
    keys = make_keys(*((f"{place}", f"{place}!") for place in range(12)))
    best = retrieval.measure(vectors, vectors, keys, [1.0] * 12)
    worst = retrieval.measure(vectors, -vectors, keys, [1.0] * 12)

    assert (best.mrr, best.ndcg, best.top1) == (1.0, 1.0, 1.0)
    assert (worst.mrr, worst.ndcg, worst.top1) == (0.0, 0.0, 0.0)


def test_equal_texts_are_one_result() -> None:
    """Twelve rows with the same positive, as labels have: it is found once, and matches all."""
    vectors = torch.eye(12)
    keys = make_keys(*((f"{place}", "yes") for place in range(12)))

    assert retrieval.measure(vectors, -vectors, keys, [1.0] * 12).mrr == 1.0


def test_scores_are_graded_matches() -> None:
    gains = retrieval.to_gains(torch.tensor([1.0, 3.0, 5.0]))

    assert gains.tolist() == [0.0, 0.5, 1.0]
    assert retrieval.to_gains(torch.full((2,), torch.nan)).tolist() == [1.0, 1.0]
    assert retrieval.to_gains(torch.full((2,), 4.0)).tolist() == [1.0, 1.0]
    keys = make_keys(("a", "A"), ("b", "B"), ("c", "C"))
    found = retrieval.measure(torch.eye(3), torch.eye(3), keys, gains.tolist())
    assert (found.ndcg, found.mrr, found.top1) == (1.0, 1.0, 1.0)
