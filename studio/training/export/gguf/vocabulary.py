"""Which tokenizers GGUF can hold, and the names by which llama.cpp knows how they split text.

llama.cpp splits text before byte pairs are merged in ways that it knows by name. The converter
recognises the tokenizers of well-known models by what they make of one text; every other tokenizer
is recognised here, by how it is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Regex, pre_tokenizers

from studio.training.export.gguf import refusals

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The one that is built in where a `ByteLevel` splits."""
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _UPPER + "|" + _LOWER + r"|\p{N}" + _SLASHES
_GPT4O = f"{_UPPER}{_ENDINGS}?|{_LOWER}{_ENDINGS}?" + r"|\p{N}{1,3}" + _SLASHES

Step = tuple[str, str]
"""A part of a pre-tokenizer and what it is set to."""
_BYTES: Step = ("ByteLevel", "")


@dataclass(frozen=True, slots=True)
class NamedSplit:
    """A way to split text that llama.cpp knows."""

    name: str
    steps: tuple[Step, ...]
    ignores_merges: bool = False
    """Whether a piece that is a token as a whole stays whole, whatever the merges are."""


SPLITS = (
    NamedSplit("gpt-2", (("ByteLevel", "split"),)),
    NamedSplit("gpt-2", (("Split", _GPT2), _BYTES)),
    NamedSplit("smollm", (("Digits", "single"), ("ByteLevel", "split"))),
    NamedSplit("llama-bpe", (("Split", _LLAMA3), _BYTES), ignores_merges=True),
    NamedSplit("smaug-bpe", (("Split", _LLAMA3), _BYTES)),
    NamedSplit("qwen2", (("Split", _QWEN2), _BYTES)),
    NamedSplit("tekken", (("Split", _TEKKEN), _BYTES), ignores_merges=True),
    NamedSplit("gpt-4o", (("Split", _GPT4O), _BYTES)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How a tokenizer is written to GGUF."""

    kind: Literal["gpt2", "llama"]
    """By llama.cpp's names: byte-level pairs, or pairs of SentencePiece with a byte fallback."""
    split: str = "default"
    prefix: str = ""
    """What the tokenizer puts before each piece of text, and llama.cpp does not."""
    adds_space: bool = False
    """Whether llama.cpp is to put a space before each piece of text."""
    note: str = ""
    """What differs for rare texts, in a sentence."""


def describe(tokenizer: Mapping[str, Any], recognise: Callable[[], str]) -> Vocabulary:
    """Find out how to write a tokenizer, given as the content of its `tokenizer.json`.

    `recognise` returns how a well-known tokenizer splits text, else "".

    Raises:
        InvalidError: GGUF or llama.cpp has nothing like it.

    """
    model = tokenizer["model"]
    normalizers = _parts(tokenizer.get("normalizer"), "normalizers")
    if model["type"] != "BPE":
        raise refusals.other_pieces(model["type"])
    if model.get("byte_fallback"):
        return _describe_sentencepiece(tokenizer, normalizers)
    steps = tuple(map(_describe_step, _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")))
    split = _name_split(steps, ignores_merges=bool(model.get("ignore_merges"))) or recognise()
    if not split:
        raise refusals.unnamed_split()
    kinds = [part["type"] for part in normalizers]
    if not kinds:
        return Vocabulary(kind="gpt2", split=split)
    if kinds == ["NFC"]:
        note = "llama.cpp does not compose accents as this tokenizer does (NFC)."
        return Vocabulary(kind="gpt2", split=split, note=note)
    if kinds == ["Prepend"]:
        return Vocabulary(kind="gpt2", split=split, prefix=normalizers[0]["prepend"])
    raise refusals.changed_text(kinds)


def build_pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer | None:
    """Build what splits text by a name of llama.cpp's; None for names that are not in the table."""
    found = next((split for split in SPLITS if split.name == name), None)
    return None if found is None else pre_tokenizers.Sequence(list(map(_build_step, found.steps)))


def _describe_sentencepiece(
    tokenizer: Mapping[str, Any], normalizers: list[dict[str, Any]]
) -> Vocabulary:
    """Describe pairs that were learned by SentencePiece, which writes spaces as `▁`."""
    splits = _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    kinds = [part["type"] for part in (*normalizers, *splits)]
    if kinds == ["Prepend", "Replace"]:
        return Vocabulary(kind="llama", adds_space=True)
    if kinds in (["Replace"], ["Replace", "Split"]):
        return Vocabulary(kind="llama")
    if kinds == ["Metaspace"] and not splits[0].get("split"):
        scheme = splits[0].get("prepend_scheme", "always")
        return Vocabulary(kind="llama", adds_space=scheme != "never")
    raise refusals.other_spaces()


def _name_split(steps: tuple[Step, ...], *, ignores_merges: bool) -> str:
    names = (
        split.name
        for split in SPLITS
        if split.steps == steps and split.ignores_merges == ignores_merges
    )
    return next(names, "")


def _parts(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, which may be a sequence."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for one in part[inner] for step in _parts(one, inner)]


def _describe_step(part: Mapping[str, Any]) -> Step:
    kind = str(part["type"])
    if kind == "ByteLevel":
        prefix = "prefix " if part.get("add_prefix_space") else ""
        return kind, prefix + ("split" if part.get("use_regex", True) else "")
    if kind == "Digits":
        return kind, "single" if part.get("individual_digits") else "all"
    if kind == "Split" and part.get("behavior") == "Isolated" and not part.get("invert"):
        return kind, str(part["pattern"].get("Regex", ""))
    return kind, str(sorted(part.items()))


def _build_step(step: Step) -> pre_tokenizers.PreTokenizer:
    kind, value = step
    if kind == "Split":
        return pre_tokenizers.Split(Regex(value), behavior="isolated")
    if kind == "Digits":
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=value == "split")
