"""What is counted of rows is what training makes of them, at every cut."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from studio.errors import TrainingError
from studio.intake.quality import length_stats
from studio.intake.quality.length_stats import PartStats, Truncation
from studio.methods.dpo.pairs import tokenise as tokenise_pairs
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX
from studio.training.data.rows import read_rows
from studio.training.data.token_stats import count_tokens, make_tokeniser
from studio.training.data.tokenisation import tokenise
from tests.training import tiny


def turn(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content} | more


ROWS: tuple[Mapping[str, Any], ...] = (
    *tiny.rows()[:6],
    {"messages": [turn("system", "Be brief."), turn("user", "Hm?"), turn("assistant", "Yes.")]},
    {
        "messages": [
            turn("user", "One? " * 20),
            turn("assistant", "No, none of that.", weight=0),
            turn("user", "Two?"),
            turn("assistant", "Two."),
            turn("user", "Thank you"),
        ]
    },
    {"messages": [turn("user", "Nobody answers.")]},
    {"messages": [turn("user", "Which?")], "chosen": [turn("assistant", "This one.")]}
    | {"rejected": [turn("assistant", "That.")]},
    {"messages": [turn("user", "Bad?"), turn("assistant", "Bad.")], "label": False},
)
TEXTS = ({"text": "It was a dark night. " * 3}, {"text": "."})


def counted(tmp_path: Path, rows: Sequence[Mapping[str, Any]], template: str = "") -> PartStats:
    path = tiny.write_rows(tmp_path / "rows.jsonl", rows)
    reader = tiny.tokenizer(template or tiny.WITHOUT_MARKS)
    return count_tokens(path, "training", make_tokeniser(reader, "model"), lambda _rows, _end: None)


def trained(path: Path, at: int) -> tuple[int, int, int, int]:
    """Return rows cut, tokens and learnt tokens left, and rows dropped, as a run has them."""
    reader = tiny.tokenizer()
    rows = read_rows(path)
    made = tokenise(rows, ChatTemplate(reader), reader, at)
    learnt = sum(label != IGNORE_INDEX for labels in made.data["labels"] for label in labels[1:])
    lengths = [
        len(one) for one in tokenise(rows, ChatTemplate(reader), reader, 10**6).data["labels"]
    ]
    unlearnt = len(rows) - len(lengths)
    return made.truncated, sum(min(at, one) for one in lengths), learnt, made.dropped - unlearnt


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, TEXTS])
def test_truncation_stats_match_training_at_every_length(
    tmp_path: Path, rows: Sequence[Mapping[str, Any]]
) -> None:
    rows = [row for row in rows if row.get("messages") != [turn("user", "Nobody answers.")]]
    found = counted(tmp_path, rows)

    cuts = (*range(1, 20), *range(20, 130, 7))
    told = {at: left(length_stats.measure_truncation([found], at), found) for at in cuts}

    assert told == {at: trained(tmp_path / "rows.jsonl", at) for at in cuts}


def left(lost: Truncation, found: PartStats) -> tuple[int, int, int, int]:
    assert lost.is_exact
    return lost.rows, found.tokens - lost.tokens, found.learnt - lost.learnt, lost.emptied


def pair(prompt: str, chosen: str, rejected: str) -> dict[str, object]:
    return {
        "messages": [turn("user", prompt)],
        "chosen": [turn("assistant", chosen)],
        "rejected": [turn("assistant", rejected)],
    }


PAIRS = (
    pair("Which?", "This one, and that.", "That."),
    pair("Où ça ? " * 12, "Là-bas.", "Ici. Ou là-bas ?"),
    pair("Same at first?", "One two three four.", "One two three five, and six."),
    pair("Equal?", "Quite.", "Quite."),
)


@pytest.mark.parametrize("at", [8, 20, 30, 38, 45, 60, 90, 120, 160])
def test_both_answers_of_pairs_are_counted_as_in_training(tmp_path: Path, at: int) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", PAIRS)
    reader = tiny.tokenizer()
    found = count_tokens(
        path, "training", make_tokeniser(reader, "model"), lambda _rows, _end: None, with_bad=True
    )
    lost = length_stats.measure_truncation([found], at)

    assert (found.rows, found.pairs, found.unlearnt) == (4, 4, 1)
    left = (lost.rows, found.rows - found.unlearnt - lost.emptied)
    assert left == _pairs_left(path, at)[:2]


def test_tokens_of_pairs_are_those_of_both_answers(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", PAIRS[:3])
    write = make_tokeniser(tiny.tokenizer(), "model")
    found = count_tokens(path, "training", write, lambda _rows, _end: None, with_bad=True)
    better = count_tokens(path, "training", write, lambda _rows, _end: None)

    for at in (160, 10**6):
        lost = length_stats.measure_truncation([found], at)
        assert found.tokens - lost.tokens == _pairs_left(path, at)[2]
    assert found.tokens > better.tokens
    assert found.longest[0].tokens > better.longest[0].tokens


def _pairs_left(path: Path, at: int) -> tuple[int, int, int]:
    """Return the truncated pairs, those left, and their tokens, as a run has them."""
    reader = tiny.tokenizer()
    try:
        made = tokenise_pairs(read_rows(path), ChatTemplate(reader), reader, at)
    except TrainingError:
        return len(PAIRS), 0, 0
    return made.truncated, len(made.rows), made.tokens


def test_rows_without_trainable_tokens_are_counted_separately(tmp_path: Path) -> None:
    found = counted(tmp_path, ROWS)

    assert (found.rows, found.unlearnt, found.left_out) == (10, 1, 1)


def test_tokens_are_counted_per_role(tmp_path: Path) -> None:
    reader = tiny.tokenizer()
    found = counted(tmp_path, ROWS[7:8])

    said = {"user": "One? " * 20, "assistant": "No, none of that.", "learnt": "Two."}
    size = {name: len(reader(text.strip())["input_ids"]) for name, text in said.items()}
    asked = size["user"] + len(reader("Two?")["input_ids"])
    answer = size["learnt"] + 1  # and the mark that ends it
    assert found.roles == {
        "user": asked,
        "assistant": size["assistant"] + answer,
        "template": found.tokens - asked - size["assistant"] - answer,
    }
    assert {name: many for name, many in found.learnt_roles.items() if many} == {
        "assistant": answer
    }


def test_every_text_token_except_first_is_counted_as_trained(tmp_path: Path) -> None:
    found = counted(tmp_path, TEXTS)

    assert (found.roles["text"], found.learnt_roles["text"]) == (found.tokens, found.tokens - 2)


def test_rows_rejected_by_template_are_listed_by_reason(tmp_path: Path) -> None:
    strict = (
        "{% for message in messages %}{% if message.role == 'system' %}"
        "{{ raise_exception('No system turns') }}{% endif %}{{ message.content }}{% endfor %}"
    )
    found = counted(tmp_path, ROWS[5:8], strict)

    assert {reason: (one.rows, one.numbers) for reason, one in found.refused.items()} == {
        "No system turns": (1, [2])
    }
    assert (found.rows, found.lengths.times.total()) == (2, 2)


def test_longest_and_shortest_rows_are_listed_by_number(tmp_path: Path) -> None:
    found = counted(tmp_path, [{"text": "a" * size} for size in (5, 900, 1, 40)])

    assert [row.number for row in found.longest] == [2, 4, 1, 3]
    assert [row.number for row in found.shortest] == [3, 1, 4, 2]
    assert found.longest[0].tokens == max(found.lengths.times)


def test_bad_answers_count_where_they_are_trained_on(tmp_path: Path) -> None:
    bad = {"messages": [turn("user", "Bad?"), turn("assistant", "Bad.")], "label": False}
    path = tiny.write_rows(tmp_path / "rows.jsonl", [bad | {"label": True}, bad, bad])
    write = make_tokeniser(tiny.tokenizer(), "model")
    found = [
        count_tokens(path, "training", write, lambda _rows, _end: None, with_bad=with_bad)
        for with_bad in (False, True)
    ]

    assert [(one.rows, one.left_out) for one in found] == [(1, 2), (3, 0)]
    assert found[1].tokens == 3 * found[0].tokens


def test_texts_of_pairs_count_each_by_itself(tmp_path: Path) -> None:
    pair = {"anchor": "It was a dark night. " * 3, "positive": "Night.", "negatives": ["a", "b"]}
    texts = [pair["anchor"], pair["positive"], *pair["negatives"]]
    (of_pair,) = [counted(tmp_path, [pair])]
    alone = [counted(tmp_path, [{"text": text}]).tokens for text in texts]

    assert (of_pair.rows, of_pair.pairs, of_pair.tokens) == (1, 0, sum(alone))
    assert of_pair.longest[0].tokens == max(alone)
    assert of_pair.truncated_tokens(3) == sum(max(0, one - 3) for one in alone)
