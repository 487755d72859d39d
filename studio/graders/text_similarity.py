"""How similar two texts are, from 0 to 1, by the metrics of OpenAI's `text_similarity`.

Words are those of the studio's evaluations: in any script, without case and punctuation. Each
character of a script without spaces, such as Chinese, is a word.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from studio.evaluation import text_scores
from studio.evaluation.rows import AnsweredRow
from studio.evaluation.words import split_words
from studio.graders.grades import GradeError

MAX_CHARACTERS = 50_000
"""The longest texts that are compared: these take a third of a second."""

_GLEU_ORDER = 4


def compare(metric: str, text: str, reference: str) -> float:
    """Return how similar two texts are by a metric of `METRICS`.

    Raises:
        GradeError: they are too long, or the metric needs a package that is missing.

    """
    if max(len(text), len(reference)) > MAX_CHARACTERS:
        raise GradeError(
            "other_error", f"Texts of more than {MAX_CHARACTERS:,} characters are not compared."
        )
    return METRICS[metric](text, reference)


def fuzzy_match(text: str, reference: str) -> float:
    """Return the share of characters in the longest common subsequence.

    2 · LCS / (characters of both): `fuzz.ratio` of rapidfuzz, which OpenAI uses, divided by 100.
    Python's difflib takes frequent characters of longer texts for noise, and is slower.
    """
    total = len(text) + len(reference)
    return 2 * text_scores.common_subsequence(text, reference) / total if total else 1.0


def rouge_n(text: str, reference: str, *, size: int) -> float:
    """Return the F-measure of the runs of words that both have.

    0 if either is shorter than a run: Lin, ROUGE: A Package for Automatic Evaluation of Summaries
    (2004), with β = 1 as in the package rouge-score.
    """
    first, second = (_count_runs(split_words(one), size) for one in (text, reference))
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if first and second else 0.0


def rouge_l(text: str, reference: str) -> float:
    """Return the F-measure of the longest common subsequence of words."""
    first, second = split_words(text), split_words(reference)
    total = len(first) + len(second)
    return 2 * text_scores.common_subsequence(first, second) / total if total else 0.0


def gleu(text: str, reference: str) -> float:
    """Return the smaller of precision and recall over runs of one to four words.

    Source: Wu et al., Google's Neural Machine Translation System (2016), section 4.3.
    """
    first, second = (
        sum((_count_runs(split_words(one), size) for size in range(1, _GLEU_ORDER + 1)), Counter())
        for one in (text, reference)
    )
    most = max(first.total(), second.total())
    return (first & second).total() / most if most else 0.0


def bleu(text: str, reference: str) -> float:
    """Return BLEU of one text with smoothing, as sacrebleu computes it for a sentence.

    Runs longer than the text do not count, so that a short text that equals its reference has 1.

    Raises:
        GradeError: sacrebleu is not installed here.

    """
    if not text_scores.has_sacrebleu():
        raise GradeError(
            "other_error",
            "BLEU needs the package sacrebleu, which is not installed here. Use gleu, or install "
            "mantissa-studio[train].",
        )
    from sacrebleu import BLEU  # noqa: PLC0415 -- optional dependency

    row = AnsweredRow(
        position=0, prompt="", reference=reference, answer=text, reason="stop", tokens=0
    )
    statistics = text_scores.bleu(row)
    if statistics is None:
        return float(text == reference)
    length, expected_length, *counts = map(round, statistics)
    correct, total = counts[: text_scores.BLEU_ORDER], counts[text_scores.BLEU_ORDER :]
    score = BLEU.compute_bleu(
        correct, total, length, expected_length, "exp", effective_order=True
    ).score
    return min(float(score) / 100, 1.0)


def _count_runs(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


METRICS: Mapping[str, Callable[[str, str], float]] = MappingProxyType(
    {
        "fuzzy_match": fuzzy_match,
        "bleu": bleu,
        "gleu": gleu,
        **{f"rouge_{size}": partial(rouge_n, size=size) for size in range(1, 6)},
        "rouge_l": rouge_l,
    }
)
"""By OpenAI's names."""

REFUSED_METRICS = MappingProxyType(
    {
        "cosine": "cosine needs an embedding model, which this studio does not serve",
        "meteor": "meteor needs WordNet, a dictionary that this studio does not have",
    }
)
"""OpenAI's other metrics, and why there is no honest score for them."""
