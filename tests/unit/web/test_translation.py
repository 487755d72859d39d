"""Every message with values is recognised, whatever its values are."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from studio.web.i18n import locale, translation
from tests.tools import message_catalogue

VALUE = re.compile(r"\{(\w+)(?::(\w+))?\}")
WIDE_GAP = re.compile(r"(?<=[\u2018-\uffef]) | (?=[\u2018-\uffef])")

CATALOGUE = {
    message.id: str(message.string)
    for message in message_catalogue.load_catalogue("zh_Hans")
    if isinstance(message.id, str)
    and message.id
    and not all(where.startswith("static/") for where, _line in message.locations)
}
TEMPLATES = {english: chinese for english, chinese in CATALOGUE.items() if VALUE.search(english)}

DATA = (
    *("qwen", "1,234.5", "my old model", 'it\'s “the "one"”', "v1.", "left the house."),
    *("a big. Dog here", "left, right", "cats and dogs", "run (copy)", "key: value"),
    *("数据 集 é", "", "there is no run that needs more memory", "a\nb", "{x} %s"),
    "lorem ipsum " * 24 + "dolor sit am",
)
OURS = ("This language is not available.", "The GPU ran out of memory.")
LISTS = {"a": "a", "a and b": "a 和 b", "a, b and c d": "a、b 和 c d"}
VALUES = {
    "": {value: value for value in DATA} | {text: CATALOGUE[text] for text in OURS},
    "word": {word: CATALOGUE[word] for word in ("training", "validation", "queued")},
    "number": {number: number for number in ("7", "1,234.5 GB", "-3.5e-05")},
    "list": LISTS,
}
"""Values by kind, with their translations."""
USUAL = {"": ("qwen", "qwen"), "word": ("training", CATALOGUE["training"])}
USUAL |= {"number": ("7", "7"), "list": ("a and b", "a 和 b")}


@pytest.fixture(autouse=True)
def _in_chinese() -> Iterator[None]:
    locale.set_language("zh-Hans")
    yield
    locale.set_language(locale.ENGLISH)


def kinds_of(message: str) -> dict[str, str]:
    return dict(VALUE.findall(TEMPLATES[message]))


def fill(message: str, values: dict[str, str]) -> str:
    return VALUE.sub(lambda match: values[match[1]], message)


def fill_chinese(template: str, values: dict[str, str]) -> str:
    return WIDE_GAP.sub("", fill(template, values))


def texts_of(message: str) -> Iterator[tuple[str, set[str]]]:
    """Yield texts made from a message, and how each may be translated.

    A value that contains the words after it is left out: where it ends cannot be told.
    """
    kinds = kinds_of(message)
    literals = VALUE.split(message)
    words_after = dict(zip(literals[1::3], literals[3::3], strict=True)) | {literals[-3]: ""}
    for name, kind in kinds.items():
        for value, translated in VALUES[kind].items():
            if words_after[name] and words_after[name] in value:
                continue
            usual = {other: USUAL[kind] for other, kind in kinds.items()}
            english = {other: pair[0] for other, pair in usual.items()} | {name: value}
            chinese = {other: pair[1] for other, pair in usual.items()} | {name: translated}
            text = fill(message, english)
            wanted = {fill_chinese(TEMPLATES[message], chinese)}
            if text.endswith(".") and not message.endswith("."):
                # The full stop of the last value ends the whole sentence.
                unstopped = chinese | {name: translated.removesuffix(".")}
                wanted.add(fill_chinese(TEMPLATES[message], unstopped) + "。")
            yield text, wanted


def test_every_message_is_recognised_with_any_values() -> None:
    wrong = [
        (text, got)
        for message in TEMPLATES
        for text, wanted in texts_of(message)
        if text.strip() and WIDE_GAP.sub("", got := translation.translate(text)) not in wanted
    ]

    assert wrong == []


def test_sentence_after_an_evidence_in_parentheses_is_recognised() -> None:
    reason = "float32: A CPU, 2 cores is fast in neither bfloat16 nor float16"
    evidence = "weights are float32, the largest sampled is 1.3"
    caveat = "No worker is connected yet, so this assumes the machine that serves these pages."

    assert translation.translate(f"{reason} ({evidence}). {caveat}") == (
        translation.translate(f"{reason} ({evidence}).") + CATALOGUE[caveat]
    )


def test_a_hint_after_a_message_is_recognised() -> None:
    hint = "Choose another precision."
    wrong = []
    for message in TEMPLATES:
        usual = {name: USUAL[kind][0] for name, kind in kinds_of(message).items()}
        text = fill(message, usual)
        if message.endswith(".") and translation.translate(f"{text} {hint}") != (
            translation.translate(text) + CATALOGUE[hint]
        ):
            wrong.append(message)

    assert wrong == []


def test_messages_that_differ_only_in_the_names_of_values_have_one_translation() -> None:
    translations = {
        (VALUE.sub("{}", english), re.sub(r"\{\w+", "{", chinese))
        for english, chinese in TEMPLATES.items()
        if len(VALUE.findall(english)) == 1
    }
    counts = Counter(shape for shape, _chinese in translations)

    assert [shape for shape, count in counts.items() if count > 1] == []


def test_values_have_words_between_them() -> None:
    assert [
        message
        for message in TEMPLATES
        if any(one.end() == other.start() for one, other in pairwise(VALUE.finditer(message)))
    ] == []


def test_the_kinds_of_values_are_known() -> None:
    assert {kind for message in TEMPLATES for kind in kinds_of(message).values()} == set(VALUES)


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("A dataset named 数据 集 already exists.", "已有名为数据 集的数据集。"),
        ("Must be training.", "必须是训练。"),
        ("Must be x.", "必须是 x。"),
        ("These columns are not used: my data.", "这些列没有使用：my data。"),
        ("These columns are not used: a, b and c.", "这些列没有使用：a、b 和 c。"),
        ("Other programs use 95 % of the CPU.", "其他程序占用了 95% 的 CPU。"),
    ],
)
def test_values_stay_as_they_are(text: str, translated: str) -> None:
    assert translation.translate(text) == translated


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "Better: 12.5 % → 57.8 % exact answers on 64 rows (by 33 to 58 points).",
            "变好：64 行上 12.5% → 57.8% 完全匹配（相差 33 至 58 个百分点）。",
        ),
        (
            "Worse: 1.595 → 2.095 nats/token on 1,020 rows (by 0.500 to 0.510).",
            "变差：1,020 行上 1.595 → 2.095 nats/token（相差 0.500 至 0.510）。",
        ),
        (
            "No clear difference on 9 rows: 12.0 and 13.5 BLEU. About 1,500 rows would do.",
            "9 行上没有明显差异：12.0 与 13.5 BLEU。约 1,500 行即可看出差异。",
        ),
    ],
)
def test_verdicts_of_evaluations_are_translated(english: str, chinese: str) -> None:
    assert translation.translate(english) == chinese
