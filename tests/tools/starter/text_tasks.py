"""Tasks on a given text: extract, judge, summarise, rewrite, and convert to a format."""

from dataclasses import dataclass
from random import Random

from tests.tools.starter import vocabulary
from tests.tools.starter.chat import Row, conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    pronoun: str
    age: int
    job: str
    town: str
    colour: str
    thing: str
    place: str
    day: str

    @property
    def item(self) -> str:
        return f"{self.colour} {self.thing}"


def random_person(rng: Random) -> Person:
    name = rng.choice(vocabulary.PEOPLE)
    return Person(
        name=name,
        pronoun=vocabulary.PRONOUNS[name],
        age=rng.randint(18, 79),
        job=rng.choice(vocabulary.JOBS),
        town=rng.choice(vocabulary.TOWNS),
        colour=rng.choice(vocabulary.COLOURS),
        thing=rng.choice(vocabulary.THINGS),
        place=rng.choice(vocabulary.PLACES),
        day=rng.choice(vocabulary.DAYS),
    )


def find_name(rng: Random) -> Row:
    person = random_person(rng)
    sentence = rng.choice(
        (
            f"On {person.day} {person.name} bought a {person.item} at the {person.place}.",
            f"The {person.item} at the {person.place} belongs to {person.name}.",
            f"A {person.job} called {person.name} came from {person.town} on {person.day}.",
            f"{person.name} works as a {person.job} near the {person.place} in {person.town}.",
        )
    )
    ask = rng.choice(
        (
            "Find the name in this sentence: {}",
            "{} Who is this about?",
            "Which person is named here? {}",
            "Extract the name. {}",
        )
    )
    return conversation(ask.format(sentence), person.name)


def find_fact(rng: Random) -> Row:
    person = random_person(rng)
    story = rng.choice(
        (
            f"{person.name} is a {person.job} from {person.town} and has a {person.item}.",
            (
                f"{person.name} lives in {person.town}, works as a {person.job} and owns a "
                f"{person.item}."
            ),
            f"The {person.job} {person.name} keeps a {person.item} at home in {person.town}.",
        )
    )
    question, answer = rng.choice(
        (
            (f"Where does {person.name} live?", f"{person.name} lives in {person.town}."),
            (f"What is the job of {person.name}?", f"{person.name} is a {person.job}."),
            (f"What colour is the {person.thing}?", f"The {person.thing} is {person.colour}."),
            (f"Who has the {person.thing}?", f"{person.name} has the {person.thing}."),
        )
    )
    order = rng.choice(("{} {}", "Read this: {}\n{}"))
    return conversation(order.format(story, question), answer)


def as_form(rng: Random) -> Row:
    person = random_person(rng)
    sentence = rng.choice(
        (
            f"{person.name} is {person.age} years old and lives in {person.town}.",
            f"{person.name}, {person.age}, lives in {person.town}.",
            f"In {person.town} lives {person.name}, who is {person.age}.",
            f"My friend {person.name} from {person.town} is {person.age} years old.",
        )
    )
    ask = rng.choice(
        (
            "Fill in a form with name, age and town: {}",
            "Turn this into a form. {}",
            "{} Put that in a form.",
        )
    )
    form = f"name: {person.name}\nage: {person.age}\ntown: {person.town}"
    return conversation(ask.format(sentence), form)


def sentiment(rng: Random) -> Row:
    label, book = rng.choice((("Positive.", vocabulary.PRAISE), ("Negative.", vocabulary.BLAME)))
    one, two = rng.sample(sorted(book), 2)
    first, second = rng.choice(book[one]), rng.choice(book[two])
    review = rng.choice(
        (
            f"The {one} was {first} and the {two} was {second}.",
            f"I found the {one} {first}. The {two} was {second} too.",
            f"To me the {one} was {first}, and I thought the {two} was {second}.",
        )
    )
    ask = rng.choice(
        (
            "Is this review positive or negative? {}",
            "{} Is that positive or negative?",
            "Judge the mood of this review: {}",
            'How does the guest feel? "{}"',
        )
    )
    return conversation(ask.format(review), label)


def summary(rng: Random) -> Row:
    person = random_person(rng)
    opening = rng.choice(
        (
            f"On {person.day} {person.name} went to the {person.place} in {person.town}.",
            f"{person.name} spent {person.day} at the {person.place} in {person.town}.",
        )
    )
    middle = rng.choice(
        ("It was raining.", "The sun was out.", "There were many people.", "It was still early.")
    )
    ending = rng.choice(
        (
            f"There {person.pronoun} bought a {person.item}.",
            f"After a while {person.pronoun} chose a {person.item} and paid for it.",
            f"In the end {person.pronoun} came home with a new {person.item}.",
        )
    )
    ask = rng.choice(("Sum this up in one sentence: {}", "Summarise: {}", "{} Make that shorter."))
    answer = f"{person.name} bought a {person.item} in {person.town}."
    return conversation(ask.format(f"{opening} {middle} {ending}"), answer)


def polite(rng: Random) -> Row:
    verb = rng.choice(list(vocabulary.ORDERS))
    order = f"{verb} {rng.choice(vocabulary.ORDERS[verb])}{rng.choice(vocabulary.WHENS)}"
    ask = rng.choice(
        (
            "Make this polite: {}",
            "Say this more politely: {}",
            "How do I ask this nicely? {}",
            "Rewrite this as a polite question: {}",
        )
    )
    return conversation(ask.format(f"{order[0].upper()}{order[1:]}!"), f"Could you please {order}?")


def past_tense(rng: Random) -> Row:
    person = random_person(rng)
    verb = rng.choice(list(vocabulary.PAST))
    rest = rng.choice(
        (f"to the {person.place}", f"from the {person.place}", f"through {person.town}")
    )
    ask = rng.choice(
        (
            "Put this in the past tense: {}",
            "Write this as if it happened yesterday: {}",
            "{} Say it in the past tense.",
        )
    )
    sentence = f"{person.name} {verb} {rest}."
    return conversation(ask.format(sentence), f"{person.name} {vocabulary.PAST[verb]} {rest}.")
