"""Pretraining text of the base model: plain prose and some small talk.

It contains the facts and words that the instruction rows ask for, but never in their
question-and-answer form: following instructions is left for fine-tuning to teach.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from tests.tools.starter import vocabulary
from tests.tools.starter.chat import Row, conversation
from tests.tools.starter.questions import with_article
from tests.tools.starter.text_tasks import random_person

PAD, START, END = "<|pad|>", "<|start|>", "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
"""Special tokens of the text."""

SEED = 7

_NOTES = (
    "A summary says the same thing in fewer words and makes a long text shorter.",
    "A polite question begins with could you please, and people like to hear it.",
    "A rude order sounds better when you rewrite it more politely and nicely.",
    "The past tense tells what happened yesterday, the present tense what happens now.",
    "A sentence has a name, a verb and often a place. Find and extract the name.",
    "A date has a day, a month and a year. Americans put the month first and the day after it.",
    "A form asks for the name, age and town of a person. You fill in one line for each.",
    "A review can be positive or negative. A happy guest feels good, and the mood is positive.",
    "To compare two numbers, pick the larger one. The other one is less.",
    "A plural is the word for more than one. You write it when you have two or more things.",
    "The opposite of a word means something else. If it is not the one, it is the other.",
    "Each kind of thing belongs to a group. The sort or group is animal, food or tool.",
    "A capital city is the first city of a country. Do you know which one it is?",
    "Be brief means answer in one word. A full sentence is longer. Read this and remember.",
)


def documents() -> Iterator[str]:
    """Yield eight paragraphs for each chat, with the special tokens that delimit them."""
    rng = Random(SEED)  # noqa: S311 -- chooses examples, guards nothing
    prose, chats = paragraphs(rng), small_talk(rng)
    while True:
        for paragraph in islice(prose, 8):
            yield f"{START}{paragraph}{END}"
        turns = next(chats)["messages"]
        yield START + "".join(f"<|{t['role']}|>{t['content']}{END}" for t in turns)


def paragraphs(rng: Random) -> Iterator[str]:
    """Yield plain prose endlessly."""
    makers: tuple[Callable[[Random], str], ...] = (
        _country, _pair, _noun, _numbers, _diary, _portrait, _portrait, _errand, _errand,
        _journey, _review, _record, _request, _note,
        _roll, _roll, _roll, _bag, _bag,
    )  # fmt: skip
    while True:
        yield " ".join(rng.choice(makers)(rng) for _ in range(rng.randint(2, 4)))


def small_talk(rng: Random) -> Iterator[Row]:
    """Yield chats endlessly: the format of a conversation, without any facts."""
    while True:
        person = random_person(rng)
        hello = rng.choice(("Hello!", "Good morning!", "Hi there.", "Good evening."))
        yield rng.choice(
            (
                conversation(hello, f"{hello} How are you on this {person.day}?"),
                conversation(f"I like the {person.place}.", f"I like the {person.place} too."),
                conversation(f"It is {person.day}.", f"Then I wish you a good {person.day}."),
                conversation(
                    hello, hello, "Thank you.", "You are welcome.", system="Be a friendly guest."
                ),
                conversation(
                    f"I saw a {person.item}.",
                    f"Was the {person.item} in {person.town}?",
                    "Yes.",
                    "I see.",
                ),
            )
        )


def _country(rng: Random) -> str:
    country, city = rng.choice(list(vocabulary.CAPITALS.items()))
    return rng.choice(
        (
            f"The capital of {country} is {city}.",
            f"{city} is the capital of {country}.",
            f"In {country} every road leads to {city}, the capital.",
            f"People from {country} are proud of {city}, the capital of {country}.",
        )
    )


def _pair(rng: Random) -> str:
    word, other = rng.choice(list(vocabulary.OPPOSITES.items()))
    return rng.choice(
        (
            f"The opposite of {word} is {other}.",
            f"What is not {word} is {other}.",
            f"One day it was {word}, the next day it was {other}.",
            f"Some like it {word}, others like it {other}.",
        )
    )


def _noun(rng: Random) -> str:
    noun, many = rng.choice(list(vocabulary.PLURALS.items()))
    kind = vocabulary.CATEGORIES[noun]
    return rng.choice(
        (
            f"I saw one {noun} here and two {many} there.",
            f"The plural of {noun} is {many}.",
            f"{with_article(noun).capitalize()} is {with_article(kind)}.",
            f"Of all {kind} words, {noun} is the one I like. I have many {many}.",
        )
    )


def _numbers(rng: Random) -> str:
    low, high = sorted(rng.sample(vocabulary.NUMBERS, 2), key=vocabulary.NUMBERS.index)
    return rng.choice(
        (
            f"{high} is larger than {low}.",
            f"{low} comes before {high}, and {high} is more than {low}.",
            f"Of {low} and {high} the larger number is {high}.",
            f"{high}, {low}: the larger one is {high}.",
        )
    )


def _diary(rng: Random) -> str:
    person = random_person(rng)
    day, month, year = rng.randint(1, 28), rng.choice(vocabulary.MONTHS), rng.randint(1980, 2029)
    return rng.choice(
        (
            (
                f"{day} {month} {year} was a {person.day}. {person.name} was in {person.town} on "
                f"{month} {day}."
            ),
            f"On {day} {month} {year} {person.name} came to {person.town}.",
            f"In {year}, on {month} {day}, {year}, {person.name} bought a {person.item}.",
        )
    )


def _portrait(rng: Random) -> str:
    person = random_person(rng)
    he = person.pronoun.capitalize()
    return rng.choice(
        (
            (
                f"{person.name} is a {person.job}. {person.name} lives in {person.town} and has a "
                f"{person.item}. "
                f"The {person.thing} is {person.colour}."
            ),
            (
                f"A {person.job} called {person.name} works near the {person.place}. {he} is "
                f"{person.age} "
                f"years old. At {person.age}, {person.name} is a good {person.job}."
            ),
            (
                f"This {person.thing} belongs to {person.name}. It is {person.colour}. {he} keeps "
                "the "
                f"{person.item} at home in {person.town}, for {person.town} is where "
                f"{person.name} lives."
            ),
            (
                f"In {person.town} they know {person.name}, the {person.job}. {he} owns a "
                f"{person.item}."
            ),
        )
    )


def _errand(rng: Random) -> str:
    person = random_person(rng)
    return rng.choice(
        (
            (
                f"On {person.day} {person.name} went to the {person.place} in {person.town}. "
                f"{_weather(rng)} "
                f"{person.name} bought a {person.item} in {person.town}."
            ),
            (
                f"{person.name} spent {person.day} at the {person.place}. {_weather(rng)} After a "
                "while "
                f"{person.pronoun} chose a {person.item} and paid for it. The {person.item} is "
                "for a friend."
            ),
            (
                f"{person.name} came home from {person.town} with a new {person.item}. "
                f"{_weather(rng)} In "
                f"the end {person.name} likes {person.town} and the {person.item}."
            ),
        )
    )


def _weather(rng: Random) -> str:
    return rng.choice(
        ("It was raining.", "The sun was out.", "There were many people.", "It was still early.")
    )


def _journey(rng: Random) -> str:
    person = random_person(rng)
    present, past = rng.choice(list(vocabulary.PAST.items()))
    return rng.choice(
        (
            (
                f"Today {person.name} {present} to the {person.place}. Yesterday {person.name} "
                f"{past} to the "
                f"{person.place} too."
            ),
            f"{person.name} {past} through {person.town} and {past} from the {person.place}.",
            f"Every {person.day} {person.name} {present} through {person.town}.",
        )
    )


def _review(rng: Random) -> str:
    mood, book = rng.choice((("positive", vocabulary.PRAISE), ("negative", vocabulary.BLAME)))
    one, two = rng.sample(sorted(book), 2)
    first, second = rng.choice(book[one]), rng.choice(book[two])
    return rng.choice(
        (
            f"The {one} was {first} and the {two} was {second}. This review is {mood}.",
            f"A {mood} guest: I found the {one} {first}, and I thought the {two} was {second}.",
            f"Positive or negative? {mood.capitalize()}. The {one} was {first}.",
        )
    )


def _record(rng: Random) -> str:
    person = random_person(rng)
    return rng.choice(
        (
            f"name: {person.name}\njob: {person.job}\nday: {person.day}",
            f"town: {person.town}\nplace: {person.place}\nname: {person.name}",
            f"The form of {person.name} says {person.age}. age: {person.age}\nname: {person.name}",
        )
    )


def _request(rng: Random) -> str:
    person = random_person(rng)
    verb = rng.choice(list(vocabulary.ORDERS))
    order = f"{verb} {rng.choice(vocabulary.ORDERS[verb])}{rng.choice(vocabulary.WHENS)}"
    return rng.choice(
        (
            f'{person.name} says: "{order[0].upper()}{order[1:]}!"',
            f'{person.name} asks: "Could you please {order}?"',
            f"Please {order}, and then {order} again.",
        )
    )


def _roll(rng: Random) -> str:
    """Repeat a list: the quickest way to learn to look back and copy."""
    words_of = rng.choice(
        (
            vocabulary.PEOPLE,
            vocabulary.TOWNS,
            vocabulary.THINGS,
            vocabulary.JOBS,
            vocabulary.COLOURS,
            vocabulary.NUMBERS,
        )
    )
    listed = ", ".join(rng.sample(words_of, rng.randint(3, 7)))
    return rng.choice((f"{listed}. Again: {listed}.", f"Here: {listed}. Once more: {listed}."))


def _bag(rng: Random) -> str:
    """Play the memory game: each player repeats the list and adds an item."""
    person = random_person(rng)
    first, second, third = (f"a {random_person(rng).item}" for _ in range(3))
    return (
        f"{person.name} packs {first}. {person.name} packs {first} and {second}. "
        f"{person.name} packs {first}, {second} and {third}."
    )


def _note(rng: Random) -> str:
    return rng.choice(_NOTES)
