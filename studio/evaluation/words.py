"""Words of a text in any script, and texts without what does not matter."""

import re
import unicodedata

from studio.evaluation.answer_rules import UNSPACED_SCRIPTS

_UNSPACED = re.compile(f"[{UNSPACED_SCRIPTS}]")
_HAN = re.compile(r"[\u2e80-\u2fdf\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_NUMBER = re.compile(r"((?:(?<!\w)[-\u2212])?\d+(?:[.,:/]\d+)*)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


class _WordCharacters(dict[int, str]):
    """Maps characters for `str.translate`: letters, marks and digits stay, others become spaces.

    Characters of scripts without spaces between words become words.
    """

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kept = char if unicodedata.category(char)[0] in "LMN" else " "
        self[code] = f" {kept} " if _UNSPACED.match(kept) else kept
        return self[code]


class _UnpunctuatedCharacters(dict[int, str]):
    """Maps characters for `str.translate`: punctuation and symbols are removed."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = "" if unicodedata.category(char)[0] in "PS" else char
        return self[code]


_WORD_CHARACTERS = _WordCharacters()
_UNPUNCTUATED = _UnpunctuatedCharacters()


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation.

    Each character of a script without spaces (Chinese, Japanese, Thai, …) is a word.
    """
    return unicodedata.normalize("NFKC", text).lower().translate(_WORD_CHARACTERS).split()


def relaxed_words(text: str) -> list[str]:
    """Return the words of a text without case, punctuation and articles, as SQuAD compares them.

    Signs, decimal points and the like within numbers stay: minus 5 is not 5, and 1.5 is not 15;
    only commas between thousands are removed. Each character of a script without spaces is a word.

    Source: `normalize_answer` in the evaluation script of SQuAD (Rajpurkar et al., 2016).
    """
    plain = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).lower())
    parts = _NUMBER.split(plain)
    parts[::2] = [part.translate(_UNPUNCTUATED) for part in parts[::2]]
    parts[1::2] = [number.replace("\N{MINUS SIGN}", "-") for number in parts[1::2]]
    return _UNSPACED.sub(r" \g<0> ", _ARTICLE.sub(" ", "".join(parts))).split()


def has_han(text: str) -> bool:
    """Return whether a text has Chinese characters."""
    return bool(_HAN.search(text))


def is_unspaced(text: str) -> bool:
    """Return whether most letters are of scripts without spaces other than Chinese.

    Japanese counts as one, although part of its letters are Chinese.
    """
    letters = [char for char in text if char.isalpha()]
    unspaced = [char for char in letters if _UNSPACED.match(char)]
    return len(unspaced) * 2 > len(letters) and not all(map(has_han, unspaced))
