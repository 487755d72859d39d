"""What one answer contributes to each score."""

import json
import math
from decimal import Decimal

import pytest
from sacrebleu import BLEU, CHRF

from studio.evaluation import text_scores
from studio.evaluation.metrics import EVALUATION_METRICS
from studio.evaluation.text_metrics import TEXT_METRICS
from studio.evaluation.words import relaxed_words, split_words
from tests.support.answered_rows import answered, answered_pairs

ENGLISH = [
    ("The cat sat on the mat.", "The cat is on the mat."),
    ("There is a dog in the garden, I think.", "A dog is in the garden, I think."),
    ("", "Nothing was said at all."),
]
CHINESE = [
    ("今天天气很好, 我们去公园。", "今天天气非常好, 我们去公园散步。"),
    ("我喜欢猫", "我喜欢小猫"),
]
JAPANESE = [("これはペンです。とても良い。", "これは赤いペンです。とても良いです。")]


def score(key: str, pairs: list[tuple[str, str]]) -> float:
    metric = EVALUATION_METRICS[key]
    rows = [metric.row_statistics(row) for row in answered_pairs(pairs)]
    counted = [row for row in rows if row is not None]
    return metric.aggregate([sum(column) for column in zip(*counted, strict=True)])


def one(key: str, answer: str, reference: str) -> float | None:
    statistics = EVALUATION_METRICS[key].row_statistics(answered(answer, reference))
    return None if statistics is None else statistics[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Cat, the cats!", ["the", "cat", "the", "cats"]),
        ("don't", ["don", "t"]),
        ("天气好。ok", ["天", "气", "好", "ok"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("\uff21\uff11", ["a1"]),
        ("?!", []),
    ],
)
def test_words_are_split_in_every_script(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  Eiffel-Tower!", ["eiffeltower"]),
        ("an answer: 1,234.5 $", ["answer", "1234.5"]),
        ("\N{MINUS SIGN}5", ["-5"]),
        ("3-5", ["35"]),
        ("你好\uff0c世界", ["你", "好", "世", "界"]),
    ],
)
def test_relaxed_words_keep_numbers(text: str, words: list[str]) -> None:
    assert relaxed_words(text) == words


@pytest.mark.parametrize(
    ("key", "answer", "reference", "counted"),
    [
        ("exact", "Paris", "Paris ", 1),
        ("exact", "paris", "Paris", 0),
        ("exact", "Paris", "", None),
        ("exact_relaxed", "the paris.", "Paris", 1),
        ("exact_relaxed", "1.5", "15", 0),
        ("exact_relaxed", "-5", "5", 0),
        ("exact_relaxed", "1000", "1,000", 1),
        ("exact_relaxed", "\u5317\u4eac\u3002", "\u5317\u4eac", 1),
        ("exact_relaxed", "?", "!", 0),
        ("exact_relaxed", "!", "!", 1),
        ("contains", "It is Paris, I think.", "paris", 1),
        ("contains", "It is 15.", "5", 0),
        ("contains", "我在北京工作", "北京", 1),
        ("contains", "Paris", " ", None),
        ("number", "So 3 + 4 = 7. It is 7 apples.", "#### 7", 1),
        ("number", "$1,234.00", "1234", 1),
        ("number", "I took 5.\n#### 6\n", "... #### 6", 1),
        ("number", "50 %", "50", 1),
        ("number", "-5", "5", 0),
        ("number", "10-5", "5", 1),
        ("number", "none", "5", 0),
        ("number", "5", "five", None),
        ("number", "答案是5\uff0c", "5", 1),
        ("json_valid", '{"a": 1', '{"a": 1}', 0),
        ("json_valid", '{"b": 1}', '{"a": 1}', 1),
        ("json_valid", "5", '{"a": 1}', 0),
        ("json_valid", '{"a": NaN}', '{"a": 1}', 0),
        ("json_valid", "{}", "5", None),
        ("json_equal", '{"b": [1.0],\n"a": "x"}', '{"a": "x", "b": [1]}', 1),
        ("json_equal", '{"a": 1}', '{"a": true}', 0),
        ("json_equal", "[" * 5000, "[]", 0),
        ("json_equal", "x", "x", None),
        ("empty", " \n", "", 1),
        ("repeats", "", "", 0),
        ("repeats", "no" * 40, "", 1),
        ("answer_tokens", "two words", "", 2),
    ],
)
def test_answer_counts_as_its_metric_says(
    key: str, answer: str, reference: str, counted: float | None
) -> None:
    assert one(key, answer, reference) == counted


def test_cut_off_answer_counts_as_cut_off() -> None:
    assert text_scores.cut_off(answered("x", reason="length")) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("the big cat", "big dog", 1 / 2),
        ("cat cat", "cat", 2 / 3),
        ("天气好", "天气坏", 2 / 3),
        ("", "cat", 0),
    ],
)
def test_word_f1_is_that_of_squad(answer: str, reference: str, expected: float) -> None:
    assert one("token_f1", answer, reference) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        # Lin (2004): of "police killed the gunman", both share three of four words in order …
        ("police kill the gunman", "police killed the gunman", 3 / 4),
        # … and here two.
        ("the gunman kill police", "police killed the gunman", 2 / 4),
        ("我喜欢猫", "我喜欢小猫", 8 / 9),
        ("", "a", 0),
        ("a", "!", None),
    ],
)
def test_rouge_l_is_that_of_its_paper(answer: str, reference: str, expected: float | None) -> None:
    assert one("rouge_l", answer, reference) == (
        None if expected is None else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [("ABCBDAB", "BDCABA", 4), ("AGGTAB", "GXTXAYB", 4), ("", "A", 0), ("A" * 200, "A" * 150, 150)],
)
def test_common_subsequence_has_textbook_length(first: str, second: str, length: int) -> None:
    assert text_scores.common_subsequence(first, second) == length


@pytest.mark.parametrize(
    ("pairs", "tokenizer"), [(ENGLISH, "13a"), (CHINESE, "zh"), (JAPANESE, "char")]
)
def test_bleu_and_chrf_equal_those_of_sacrebleu(
    pairs: list[tuple[str, str]], tokenizer: str
) -> None:
    answers, references = [pair[0] for pair in pairs], [[pair[1] for pair in pairs]]
    bleu, chrf = BLEU(tokenize=tokenizer), CHRF()

    assert score("bleu", pairs) == pytest.approx(bleu.corpus_score(answers, references).score)
    assert score("chrf", pairs) == pytest.approx(chrf.corpus_score(answers, references).score)
    assert score("bleu", pairs) > 10
    rows = answered_pairs(pairs)
    assert EVALUATION_METRICS["bleu"].signature(rows) == bleu.get_signature().format()
    assert EVALUATION_METRICS["chrf"].signature(rows) == chrf.get_signature().format()


def test_bleu_of_empty_answers_is_zero() -> None:
    assert score("bleu", [("", "one two three four five")]) == 0


@pytest.mark.parametrize(
    ("reference", "tokenizer"),
    [
        ("plain text", "13a"),
        ("한국어 문장", "13a"),
        ("用 LoRA 训练", "zh"),
        ("東京に行きます", "char"),
        ("ภาษาไทย", "char"),
        ("42", "13a"),
    ],
)
def test_tokenizer_follows_script_of_reference(reference: str, tokenizer: str) -> None:
    assert text_scores.bleu_tokenizer(reference) == tokenizer


@pytest.mark.parametrize("nll", [None, math.nan, math.inf])
def test_loss_that_is_not_finite_does_not_count(nll: float | None) -> None:
    assert text_scores.loss(answered("x", "y", nll=nll, nll_tokens=1)) is None


def test_loss_is_per_token_and_bits_are_per_byte() -> None:
    row = answered("", "é", nll=2 * math.log(2), nll_tokens=4)

    assert text_scores.ratio(text_scores.loss(row) or ()) == pytest.approx(math.log(2) / 2)
    assert text_scores.ratio(text_scores.bits_per_byte(row) or ()) == pytest.approx(1)


def test_loss_without_tokens_does_not_count() -> None:
    assert text_scores.loss(answered("x", "y", nll=1.0)) is None


def test_last_number_is_exact() -> None:
    assert text_scores.last_number("0.1 and 1e3") == Decimal(1000)


@pytest.mark.parametrize("key", [metric.key for metric in TEXT_METRICS])
def test_rows_without_reference_count_only_where_none_is_needed(key: str) -> None:
    metric = EVALUATION_METRICS[key]
    row = answered("an answer", nll=1.0, nll_tokens=1)

    assert (metric.row_statistics(row) is None) == metric.needs_reference


def test_json_keeps_large_numbers_apart() -> None:
    first, second = json.dumps([2**60]), json.dumps([2**60 + 1])

    assert one("json_equal", first, second) == 0
