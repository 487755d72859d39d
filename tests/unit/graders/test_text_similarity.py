"""Similarities have the values of the packages that OpenAI names, and know Chinese."""

import math

import pytest

from studio.graders.text_similarity import METRICS

CAT, MAT = "the cat sat on the mat", "the cat lay on the mat"


@pytest.mark.parametrize(
    ("metric", "text", "reference", "expected"),
    [
        # rapidfuzz.fuzz.ratio, as in its documentation, divided by 100.
        ("fuzzy_match", "this is a test", "this is a test!", 0.9655172413793103),
        ("fuzzy_match", "fuzzy wuzzy was a bear", "wuzzy fuzzy was a bear", 0.9090909090909091),
        ("fuzzy_match", "", "", 1.0),
        ("fuzzy_match", "abc", "", 0.0),
        ("fuzzy_match", "x" * 300 + "a", "x" * 300 + "b", 600 / 602),
        ("fuzzy_match", "今天天气很好", "今天天气不好", 10 / 12),
        # Five of six words, three of five pairs, one of four triples.
        ("rouge_1", CAT, MAT, 5 / 6),
        ("rouge_2", CAT, MAT, 3 / 5),
        ("rouge_3", CAT, MAT, 1 / 4),
        ("rouge_4", CAT, MAT, 0.0),
        ("rouge_5", CAT, CAT, 1.0),
        ("rouge_5", "too short", "too short", 0.0),
        ("rouge_l", CAT, MAT, 5 / 6),
        ("rouge_1", "the the the", "the cat", 2 / 5),
        ("rouge_1", "今天天气很好。", "今天天气不好", 5 / 6),
        ("rouge_2", "今天天气很好。", "今天天气不好", 3 / 5),
        ("rouge_l", "", "a", 0.0),
        # Three words, two pairs and one triple of the longer text's 4 + 3 + 2 + 1.
        ("gleu", "the cat sat", "the cat sat down", 6 / 10),
        ("gleu", CAT, CAT, 1.0),
        ("gleu", "", "", 0.0),
        ("gleu", "天气很好", "天气不好", (3 + 1) / 10),
        ("bleu", CAT, CAT, 1.0),
        ("bleu", "yes", "yes", 1.0),
        ("bleu", "今天天气很好", "今天天气很好", 1.0),
        ("bleu", "nothing alike", "the cat", 0.0),
        ("bleu", "", "the cat", 0.0),
        ("bleu", "", "", 1.0),
    ],
)
def test_metric_has_known_value(metric: str, text: str, reference: str, expected: float) -> None:
    assert math.isclose(METRICS[metric](text, reference), expected, abs_tol=1e-9)


@pytest.mark.parametrize(("text", "reference"), [(CAT, MAT), ("今天天气很好吗", "今天天气不好吗")])
def test_bleu_is_that_of_sacrebleu(text: str, reference: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    tokenizer = "13a" if text == CAT else "zh"
    expected = sacrebleu.sentence_bleu(text, [reference], tokenize=tokenizer).score / 100

    assert 0 < expected < 1
    assert math.isclose(METRICS["bleu"](text, reference), expected)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "texts", [("", "a"), ("a", ""), ("\ud800", "天"), ("a" * 5000, "b a" * 999)]
)
def test_similarity_is_between_0_and_1(metric: str, texts: tuple[str, str]) -> None:
    assert 0 <= METRICS[metric](*texts) <= 1
