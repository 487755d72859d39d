from itertools import islice
from random import Random

from tests.tools.starter import instruction_rows, pretraining_text, vocabulary


def test_prose_is_deterministic() -> None:
    assert _paragraphs(200) == _paragraphs(200)


def test_chats_exclude_instruction_questions() -> None:
    """The base model must not have seen a single question of the data set asked."""
    chats = list(islice(pretraining_text.small_talk(_rng()), 2000))
    asked = {row["messages"][-2]["content"] for row in instruction_rows.generate_rows("train")}

    assert asked & {message["content"] for chat in chats for message in chat["messages"]} == set()


def test_prose_mentions_every_country_and_person() -> None:
    text = " ".join(_paragraphs(4000))

    assert [word for word in _taught() if word not in text] == []


def _taught() -> list[str]:
    return [*vocabulary.CAPITALS, *vocabulary.CAPITALS.values(), *vocabulary.PEOPLE]


def _paragraphs(count: int) -> list[str]:
    return list(islice(pretraining_text.paragraphs(_rng()), count))


def _rng() -> Random:
    return Random(pretraining_text.SEED)  # noqa: S311 -- chooses examples, guards nothing
