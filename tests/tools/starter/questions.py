"""Questions with one short answer: facts to recall, words to change, numbers to compare."""

from collections.abc import Sequence
from random import Random

from tests.tools.starter import vocabulary
from tests.tools.starter.chat import Row, conversation

FULL_ANSWERS = ("You are a helpful assistant.", "Answer in a full sentence.")
SHORT_ANSWERS = ("Answer in one word.", "Be brief.")
SYSTEM_SHARE = 0.2


def capital(rng: Random) -> Row:
    country, city = rng.choice(list(vocabulary.CAPITALS.items()))
    asks = (
        "What is the capital of {}?",
        "Which city is the capital of {}?",
        "Tell me the capital of {}.",
        "Name the capital city of {}.",
        "Do you know the capital of {}?",
        "I am going to {}. What is its capital?",
    )
    return _ask(rng, asks, country, f"The capital of {country} is {city}.", city)


def opposite(rng: Random) -> Row:
    word, other = rng.choice(list(vocabulary.OPPOSITES.items()))
    asks = (
        "What is the opposite of {}?",
        "Give me the opposite of the word {}.",
        "Which word means the opposite of {}?",
        "If something is not {}, what is it?",
    )
    return _ask(rng, asks, word, f"The opposite of {word} is {other}.", other)


def plural(rng: Random) -> Row:
    noun, many = rng.choice(list(vocabulary.PLURALS.items()))
    asks = (
        "What is the plural of {}?",
        "Give me the plural of the word {}.",
        "I have one {}. What are two called?",
        "How do I write more than one {}?",
    )
    return _ask(rng, asks, noun, f"The plural of {noun} is {many}.", many)


def category(rng: Random) -> Row:
    noun, kind = rng.choice(list(vocabulary.CATEGORIES.items()))
    asks = (
        "What kind of thing is {}?",
        "To which group belongs {}?",
        "Name the group for {}.",
        "Tell me what sort of thing {} is.",
    )
    thing = with_article(noun)
    answer = f"{thing.capitalize()} is {with_article(kind)}."
    return _ask(rng, asks, thing, answer, kind)


def larger(rng: Random) -> Row:
    pair = rng.sample(vocabulary.NUMBERS, 2)
    high = max(pair, key=vocabulary.NUMBERS.index)
    asks = (
        "Which number is larger, {}?",
        "Pick the larger number: {}.",
        "Which is more, {}?",
        "Can you tell me which is larger, {}?",
    )
    return _ask(rng, asks, " or ".join(pair), f"The larger number is {high}.", high)


def date(rng: Random) -> Row:
    day, month, year = rng.randint(1, 28), rng.choice(vocabulary.MONTHS), rng.randint(1980, 2029)
    asks = (
        "Write {} the American way.",
        "Put the month first: {}",
        "How do Americans write {}?",
        "Change the date {} to the American form.",
    )
    return conversation(rng.choice(asks).format(f"{day} {month} {year}"), f"{month} {day}, {year}")


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _ask(rng: Random, asks: Sequence[str], subject: str, full: str, short: str) -> Row:
    """Ask the question, sometimes with a system prompt for the answer's length."""
    question = rng.choice(asks).format(subject)
    if rng.random() < SYSTEM_SHARE:
        return conversation(question, short, system=rng.choice(SHORT_ANSWERS))
    system = rng.choice(FULL_ANSWERS) if rng.random() < SYSTEM_SHARE else ""
    return conversation(question, full, system=system)
