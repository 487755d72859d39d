"""Tasks on a given text: extract, judge, summarise, rewrite, and convert to a format."""

from dataclasses import dataclass
from random import Random

from studio.starter import vocabulary
from studio.starter.chat import Row, conversation


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
    who = random_person(rng)
    sentence = rng.choice(
        (
            f"On {who.day} {who.name} bought a {who.item} at the {who.place}.",
            f"The {who.item} at the {who.place} belongs to {who.name}.",
            f"A {who.job} called {who.name} came from {who.town} on {who.day}.",
            f"{who.name} works as a {who.job} near the {who.place} in {who.town}.",
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
    return conversation(ask.format(sentence), who.name)


def find_fact(rng: Random) -> Row:
    who = random_person(rng)
    story = rng.choice(
        (
            f"{who.name} is a {who.job} from {who.town} and has a {who.item}.",
            f"{who.name} lives in {who.town}, works as a {who.job} and owns a {who.item}.",
            f"The {who.job} {who.name} keeps a {who.item} at home in {who.town}.",
        )
    )
    question, answer = rng.choice(
        (
            (f"Where does {who.name} live?", f"{who.name} lives in {who.town}."),
            (f"What is the job of {who.name}?", f"{who.name} is a {who.job}."),
            (f"What colour is the {who.thing}?", f"The {who.thing} is {who.colour}."),
            (f"Who has the {who.thing}?", f"{who.name} has the {who.thing}."),
        )
    )
    order = rng.choice(("{} {}", "Read this: {}\n{}"))
    return conversation(order.format(story, question), answer)


def as_form(rng: Random) -> Row:
    who = random_person(rng)
    sentence = rng.choice(
        (
            f"{who.name} is {who.age} years old and lives in {who.town}.",
            f"{who.name}, {who.age}, lives in {who.town}.",
            f"In {who.town} lives {who.name}, who is {who.age}.",
            f"My friend {who.name} from {who.town} is {who.age} years old.",
        )
    )
    ask = rng.choice(
        (
            "Fill in a form with name, age and town: {}",
            "Turn this into a form. {}",
            "{} Put that in a form.",
        )
    )
    form = f"name: {who.name}\nage: {who.age}\ntown: {who.town}"
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
    who = random_person(rng)
    opening = rng.choice(
        (
            f"On {who.day} {who.name} went to the {who.place} in {who.town}.",
            f"{who.name} spent {who.day} at the {who.place} in {who.town}.",
        )
    )
    middle = rng.choice(
        ("It was raining.", "The sun was out.", "There were many people.", "It was still early.")
    )
    ending = rng.choice(
        (
            f"There {who.pronoun} bought a {who.item}.",
            f"After a while {who.pronoun} chose a {who.item} and paid for it.",
            f"In the end {who.pronoun} came home with a new {who.item}.",
        )
    )
    ask = rng.choice(("Sum this up in one sentence: {}", "Summarise: {}", "{} Make that shorter."))
    answer = f"{who.name} bought a {who.item} in {who.town}."
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
    who = random_person(rng)
    verb = rng.choice(list(vocabulary.PAST))
    rest = rng.choice((f"to the {who.place}", f"from the {who.place}", f"through {who.town}"))
    ask = rng.choice(
        (
            "Put this in the past tense: {}",
            "Write this as if it happened yesterday: {}",
            "{} Say it in the past tense.",
        )
    )
    sentence = f"{who.name} {verb} {rest}."
    return conversation(ask.format(sentence), f"{who.name} {vocabulary.PAST[verb]} {rest}.")
