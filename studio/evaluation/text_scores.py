"""What one answer contributes to each score: statistics that are summed over the rows.

None means that the row does not count.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from studio.evaluation import answer_rules
from studio.evaluation.rows import AnsweredRow
from studio.evaluation.words import has_han, is_unspaced, relaxed_words, split_words

if TYPE_CHECKING:
    from sacrebleu import BLEU, CHRF

Statistics = tuple[float, ...]

FINAL_ANSWER = "####"
"""What the answers of gsm8k write before their result."""

BLEU_ORDER = 4
"""BLEU counts matches of one to four words in a row."""

NUMBER = re.compile(
    r"((?:(?<!\w)-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d{1,3}(?!\d))?)",
    re.IGNORECASE,
)
"""A number, with a sign, commas between thousands, decimals or an exponent."""


def share(value: float) -> Statistics:
    """Return what a row contributes to a mean: its value, and one row."""
    return float(value), 1.0


def exact(row: AnsweredRow) -> Statistics | None:
    """Count an answer that is the reference."""
    is_correct = answer_rules.is_correct(row.answer, row.reference)
    return None if is_correct is None else share(is_correct)


def exact_relaxed(row: AnsweredRow) -> Statistics | None:
    """Count an answer whose words are those of the reference."""
    if not row.has_reference:
        return None
    words = relaxed_words(row.reference)
    return share(relaxed_words(row.answer) == words) if words else exact(row)


def contains(row: AnsweredRow) -> Statistics | None:
    """Count an answer in which the words of the reference appear together, in order."""
    if not row.has_reference:
        return None
    if words := relaxed_words(row.reference):
        return share(_padded(words) in _padded(relaxed_words(row.answer)))
    return share(row.reference.strip() in row.answer)


def _padded(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "


def number(row: AnsweredRow) -> Statistics | None:
    """Count an answer whose last number is that of the reference."""
    expected = last_number(row.reference)
    return None if expected is None else share(last_number(row.answer) == expected)


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, or of what follows `####`; None if there is none.

    Dollar and percent signs and commas between thousands do not matter.
    """
    result = unicodedata.normalize("NFKC", text).rpartition(FINAL_ANSWER)[2]
    plain = result.replace("$", "").replace("\N{MINUS SIGN}", "-")
    numbers = NUMBER.findall(plain)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def token_f1(row: AnsweredRow) -> Statistics | None:
    """Score the words that an answer shares with the reference, in any order.

    F1 = 2 · precision · recall / (precision + recall) = 2 · shared / (words + expected words).

    Source: `f1_score` in the evaluation script of SQuAD (Rajpurkar et al., 2016).
    """
    if not row.has_reference:
        return None
    words, expected = relaxed_words(row.answer), relaxed_words(row.reference)
    if not (words and expected):
        return share(words == expected)
    shared = (Counter(words) & Counter(expected)).total()
    return share(2 * shared / (len(words) + len(expected)))


def rouge_l(row: AnsweredRow) -> Statistics | None:
    """Score the longest common subsequence of the words: F-measure of precision and recall.

    Source: Lin, ROUGE: A Package for Automatic Evaluation of Summaries (2004), with β = 1 as in
    the package rouge-score, which knows no letters but a to z.
    """
    expected = split_words(row.reference)
    if not expected:
        return None
    words = split_words(row.answer)
    return share(2 * common_subsequence(words, expected) / (len(words) + len(expected)))


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    Each bit of an integer is a cell of a column of the usual table, so that a column takes a few
    operations: Hyyrö, Bit-Parallel LCS-length Computation Revisited (2004).
    """
    places: dict[str, int] = {}
    for index, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << index
    everything = (1 << len(first)) - 1
    column = everything
    for word in second:
        matches = column & places.get(word, 0)
        column = ((column + matches) | (column - matches)) & everything
    return len(first) - column.bit_count()


@cache
def has_sacrebleu() -> bool:
    """Return whether BLEU and chrF can be computed here."""
    return find_spec("sacrebleu") is not None


@cache
def _bleu(tokenizer: str) -> "BLEU":
    from sacrebleu import BLEU  # noqa: PLC0415 -- optional dependency

    return BLEU(tokenize=tokenizer, force=True)


@cache
def _chrf() -> "CHRF":
    from sacrebleu import CHRF  # noqa: PLC0415 -- optional dependency

    return CHRF()


def bleu_tokenizer(reference: str) -> str:
    """Return the sacrebleu tokenizer for the script of a reference.

    The default knows only scripts with spaces. That for Chinese treats other words as the default
    does. Japanese, Thai and the like are split into characters.
    """
    if is_unspaced(reference):
        return "char"
    return "zh" if has_han(reference) else "13a"


def bleu(row: AnsweredRow) -> Statistics | None:
    """Return the lengths and the matching and all n-grams that BLEU is computed from."""
    if not (row.has_reference and has_sacrebleu()):
        return None
    scorer = _bleu(bleu_tokenizer(row.reference))
    (statistics,) = scorer._extract_corpus_statistics([row.answer], [[row.reference]])  # noqa: SLF001 -- no public function returns them
    return tuple(map(float, statistics))


def bleu_score(sums: Sequence[float]) -> float:
    """Return BLEU of a corpus, 0 to 100, with exponential smoothing.

    BLEU = brevity penalty · exp(mean of ln precision of one to four words): Papineni et al., BLEU
    (2002), as in Post, A Call for Clarity in Reporting BLEU Scores (2018).
    """
    from sacrebleu import BLEU  # noqa: PLC0415 -- optional dependency

    length, expected_length, *counts = (round(one) for one in sums)
    correct, total = counts[:BLEU_ORDER], counts[BLEU_ORDER:]
    return float(BLEU.compute_bleu(correct, total, length, expected_length, "exp").score)


def chrf(row: AnsweredRow) -> Statistics | None:
    """Return the n-grams of the answer, of the reference and of both, by length."""
    if not (row.has_reference and has_sacrebleu()):
        return None
    (statistics,) = _chrf()._extract_corpus_statistics([row.answer], [[row.reference]])  # noqa: SLF001 -- no public function returns them
    return tuple(map(float, statistics))


def chrf_score(sums: Sequence[float]) -> float:
    """Return chrF2 of a corpus, 0 to 100: F-score of runs of one to six characters.

    Source: Popović, chrF: Character n-gram F-score for Automatic MT Evaluation (2015).
    """
    return float(_chrf()._compute_f_score(list(sums)))  # type: ignore[arg-type]  # noqa: SLF001 -- no public function takes sums


def json_valid(row: AnsweredRow) -> Statistics | None:
    """Count an answer that is a JSON object or array, if the reference is one."""
    if parse_json(row.reference) is None:
        return None
    return share(parse_json(row.answer) is not None)


def json_equal(row: AnsweredRow) -> Statistics | None:
    """Count an answer that has the values of the reference, if that is a JSON object or array."""
    expected = parse_json(row.reference)
    if expected is None:
        return None
    try:
        return share(parse_json(row.answer) == expected)
    except RecursionError:
        return share(0)


def parse_json(text: str) -> dict[str, object] | list[object] | None:
    """Return a JSON object or array; None if the text is something else.

    Numbers are pairs, so that 1 equals 1.0 but not true.
    """
    try:
        value = json.loads(
            text, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
        )
    except (ValueError, InvalidOperation, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _number(digits: str) -> tuple[str, Decimal]:
    return "number", Decimal(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def loss(row: AnsweredRow) -> Statistics | None:
    """Return the nats and the tokens of the reference, if they were measured and are finite."""
    if not row.has_reference or row.nll is None or not math.isfinite(row.nll):
        return None
    return (row.nll, float(row.nll_tokens)) if row.nll_tokens else None


def bits_per_byte(row: AnsweredRow) -> Statistics | None:
    """Return the bits and the bytes of the reference."""
    measured = loss(row)
    size = len(row.reference.encode(errors="surrogatepass"))
    return (measured[0] / math.log(2), float(size)) if measured else None


def preference_margin(row: AnsweredRow) -> Statistics | None:
    """Return by how many nats the better answer of a pair is likelier than the worse one."""
    measured = loss(row)
    if measured is None or row.rejected_nll is None or not math.isfinite(row.rejected_nll):
        return None
    return row.rejected_nll - measured[0], 1.0


def ranking(row: AnsweredRow) -> Statistics | None:
    """Count a pair of which the better answer is likelier."""
    margin = preference_margin(row)
    return margin and share(margin[0] > 0)


def ratio(sums: Sequence[float]) -> float:
    """Return one sum per other: values per row, nats per token, bits per byte."""
    return sums[0] / sums[1] if sums[1] else math.nan


def cut_off(row: AnsweredRow) -> Statistics:
    """Count an answer that reached the maximum length."""
    return share(row.reason == "length")


def empty(row: AnsweredRow) -> Statistics:
    """Count an answer without text."""
    return share(not row.answer.strip())


def repeats(row: AnsweredRow) -> Statistics:
    """Count an answer that ends by repeating itself."""
    return share(bool(row.answer.strip()) and answer_rules.is_degenerate(row.answer))


def answer_tokens(row: AnsweredRow) -> Statistics:
    """Return the tokens of an answer, and one row."""
    return share(row.tokens)
