"""Evaluation rows that are in the training data."""

import pytest

from studio.evaluation import overlap
from studio.evaluation.rows import AnsweredRow
from tests.support.answered_rows import answered

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
CHINESE = "今天天气非常好我们一起去公园散步吧"


def row(prompt: str, reference: str = "", position: int = 0) -> AnsweredRow:
    return answered("", reference, prompt=prompt, position=position)


def some_words(first: int, last: int) -> str:
    return " ".join(WORDS.split()[first:last])


@pytest.mark.parametrize(
    ("text", "evaluated", "found"),
    [
        ("What is  2 + 2", row("What is 2 + 2?", "4"), "exact"),
        ("What is 2 + 2? 4", row("What is 2 + 2?", "4"), "exact"),
        ("4", row("What is 2 + 2?", "4"), None),
        ("So: what is 2 + 2? 4", row("What is 2 + 2?", "4"), None),
        (f"x {some_words(1, 14)} y", row(WORDS), "ngram"),
        (f"x {some_words(1, 13)} y", row(WORDS), None),
        (f"x {some_words(0, 8)} y", row(some_words(0, 10)), "ngram"),
        (f"x {some_words(0, 7)} y", row(some_words(0, 10)), None),
        (f"x {some_words(0, 13)} y", row("Count!", WORDS), "ngram"),
        (f"是的\uff0c{CHINESE}。", row(CHINESE), "ngram"),
        (f"是的\uff0c{CHINESE[:12]}。", row(CHINESE), None),
        ("", row(""), None),
        ("?", row("!"), None),
    ],
)
def test_overlap_is_found_by_words(text: str, evaluated: AnsweredRow, found: str | None) -> None:
    assert overlap.overlaps(["other", text], [evaluated]) == ({0: found} if found else {})


def test_exact_overlap_counts_whatever_came_before() -> None:
    assert overlap.overlaps([f"x {WORDS}", WORDS, f"y {WORDS}"], [row(WORDS)]) == {0: "exact"}


def test_shared_instruction_is_no_overlap() -> None:
    rows = [row(f"{WORDS} {at}", position=at) for at in range(4)]

    assert overlap.overlaps([f"{WORDS} 9"], rows) == {}
    assert overlap.overlaps([f"{WORDS} 3"], rows) == {3: "exact"}


def test_training_texts_are_read_once() -> None:
    texts = iter([WORDS])

    assert overlap.overlaps(texts, [row(WORDS)]) == {0: "exact"}
    assert next(texts, None) is None


def test_no_rows_have_no_overlap() -> None:
    assert overlap.overlaps([WORDS], []) == {}


def test_long_overlap_is_found_with_few_hashes_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_MAX_GRAMS", 200)
    text = " ".join(map(str, range(1000)))

    assert overlap.overlaps([f"x {text}"], [row(text)]) == {0: "ngram"}
