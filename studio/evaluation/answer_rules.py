"""Whether an answer is correct, or broken."""

import unicodedata

UNSPACED_SCRIPTS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff"
    r"\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Chinese, Japanese and their punctuation."""

_LONGEST_LOOP, _LOOPS = 80, 5
"""An answer repeats itself if it ends with the same up to 80 characters, five times."""

_MIN_LOOP = 20
"""Minimum length of all repetitions: "ha ha ha ha ha" is an answer."""


def is_correct(answer: str, expected: str) -> bool | None:
    """Return whether an answer equals the expected text; None if none is expected.

    Case and punctuation matter; white space and Unicode normalisation do not. A looser rule would
    accept answers that only a person can judge.

    """
    if not expected.strip():
        return None
    return _normalise(answer) == _normalise(expected)


def is_degenerate(answer: str) -> bool:
    """Return whether an answer is empty, or ends by repeating the same words over and over."""
    text = " ".join(answer.split())
    for size in range(1, _LONGEST_LOOP + 1):
        length = max(_MIN_LOOP, _LOOPS * size - 1)
        end = text[-length:]
        if len(end) == length and end[size:] == end[:-size]:
            return True
    return not text


def _normalise(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
