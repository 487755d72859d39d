"""Conversations of two and three questions, where later ones depend on earlier turns."""

from random import Random

from studio.starter import vocabulary
from studio.starter.chat import Row, conversation
from studio.starter.text_tasks import Person, random_person

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
    one, two, three = rng.sample(list(table), 3)
    turns = [
        f"What is the {kind} of {one}?",
        f"The {kind} of {one} is {table[one]}.",
        rng.choice(_FOLLOW_UPS).format(two),
        f"The {kind} of {two} is {table[two]}.",
    ]
    if rng.choice((True, False, False)):
        turns += [
            rng.choice(_FOLLOW_UPS).format(three),
            f"The {kind} of {three} is {table[three]}.",
        ]
    return conversation(*turns)


def next_detail(rng: Random) -> Row:
    """Introduce a person, ask about one detail, then about another."""
    who = random_person(rng)
    story = f"{who.name} is a {who.job} from {who.town} and has a {who.item}."
    first, second = rng.sample(_details(who), 2)
    return conversation(f"{story} {first[0]}", first[1], *second)


def remembered_name(rng: Random) -> Row:
    """Introduce the user, and later ask for the name."""
    who = random_person(rng)
    hello = rng.choice(("My name is {}.", "I am {}.", "Hello, {} here.")).format(who.name)
    more = rng.choice(
        (f"I live in {who.town}.", f"I work as a {who.job}.", f"I have a {who.item}.", "")
    )
    ask = rng.choice(("What is my name?", "Who am I?", "Do you remember my name?"))
    closing = rng.choice(("", f" I must go to the {who.place} now."))
    return conversation(
        f"{hello} {more}".strip(),
        f"Nice to meet you, {who.name}.",
        f"{ask}{closing}",
        f"Your name is {who.name}.",
    )


def _details(who: Person) -> list[tuple[str, str]]:
    return [
        (f"Where does {who.pronoun} live?", f"{who.name} lives in {who.town}."),
        (f"What is the job of {who.name}?", f"{who.name} is a {who.job}."),
        (f"What colour is the {who.thing}?", f"The {who.thing} is {who.colour}."),
        (f"Who has the {who.thing}?", f"{who.name} has the {who.thing}."),
    ]
