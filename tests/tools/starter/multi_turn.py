"""Conversations of two and three questions, where later ones depend on earlier turns."""

from random import Random

from tests.tools.starter import vocabulary
from tests.tools.starter.chat import Row, conversation
from tests.tools.starter.text_tasks import Person, random_person

_FOLLOW_UPS = (
    "And {}?",
    "What about {}?",
    "And what about {}?",
    "Now {}, please.",
    "The same for {}?",
)


def next_fact(rng: Random) -> Row:
    """Ask for the same kind of fact again, without naming the kind."""
    kind, table = rng.choice(
        (
            ("capital", vocabulary.CAPITALS),
            ("opposite", vocabulary.OPPOSITES),
            ("plural", vocabulary.PLURALS),
        )
    )
    first, second, third = rng.sample(list(table), 3)
    turns = [
        f"What is the {kind} of {first}?",
        f"The {kind} of {first} is {table[first]}.",
        rng.choice(_FOLLOW_UPS).format(second),
        f"The {kind} of {second} is {table[second]}.",
    ]
    if rng.choice((True, False, False)):
        turns += [
            rng.choice(_FOLLOW_UPS).format(third),
            f"The {kind} of {third} is {table[third]}.",
        ]
    return conversation(*turns)


def next_detail(rng: Random) -> Row:
    """Introduce a person, ask about one detail, then about another."""
    person = random_person(rng)
    story = f"{person.name} is a {person.job} from {person.town} and has a {person.item}."
    first, second = rng.sample(_details(person), 2)
    return conversation(f"{story} {first[0]}", first[1], *second)


def remembered_name(rng: Random) -> Row:
    """Introduce the user, and later ask for the name."""
    person = random_person(rng)
    hello = rng.choice(("My name is {}.", "I am {}.", "Hello, {} here.")).format(person.name)
    more = rng.choice(
        (f"I live in {person.town}.", f"I work as a {person.job}.", f"I have a {person.item}.", "")
    )
    ask = rng.choice(("What is my name?", "Who am I?", "Do you remember my name?"))
    closing = rng.choice(("", f" I must go to the {person.place} now."))
    return conversation(
        f"{hello} {more}".strip(),
        f"Nice to meet you, {person.name}.",
        f"{ask}{closing}",
        f"Your name is {person.name}.",
    )


def _details(person: Person) -> list[tuple[str, str]]:
    return [
        (f"Where does {person.pronoun} live?", f"{person.name} lives in {person.town}."),
        (f"What is the job of {person.name}?", f"{person.name} is a {person.job}."),
        (f"What colour is the {person.thing}?", f"The {person.thing} is {person.colour}."),
        (f"Who has the {person.thing}?", f"{person.name} has the {person.thing}."),
    ]
