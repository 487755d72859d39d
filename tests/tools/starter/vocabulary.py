"""The vocabulary shared by prose and instruction rows, so that one prepares for the other."""


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SHE = _split_words(
    "Ada Amara Bella Chloe Clara Elif Emma Farah Grace Hana Ines Laila Lena Maya Nadia Nora Priya "
    "Rita Yuki Zoe"
)
HE = _split_words(
    "Adam Ahmed Ben Carlos David Emil Felix Hugo Ivan Jack Karim Kofi Leo Martin Noah Omar Pablo "
    "Ravi Simon Theo"
)
PRONOUNS = dict.fromkeys(SHE, "she") | dict.fromkeys(HE, "he")
PEOPLE = tuple(PRONOUNS)

TOWNS = _split_words(
    "Bristol Lyon Porto Seville Turin Hamburg Ghent Bergen Krakow Basel Cork Leeds Boston Denver "
    "Osaka Mumbai Lagos Perth Quebec Dallas"
)

CAPITALS = {
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Ghana": "Accra",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Thailand": "Bangkok",
}

_PAIRS = (
    "hot cold, big small, fast slow, old new, early late, light dark, happy sad, open closed, "
    "full empty, high low, long short, wet dry, hard soft, loud quiet, clean dirty, strong weak, "
    "rich poor, near far, first last, true false"
)
OPPOSITES = {
    word: other
    for pair in _PAIRS.split(", ")
    for one, two in [pair.split()]
    for word, other in ((one, two), (two, one))
}

_NOUNS = {
    "animal": (
        "cat cats, dog dogs, horse horses, fox foxes, mouse mice, goose geese, sheep sheep, "
        "wolf wolves, bird birds, frog frogs, lion lions, duck ducks"
    ),
    "food": (
        "apple apples, carrot carrots, potato potatoes, cherry cherries, tomato tomatoes, "
        "peach peaches, onion onions, pear pears, berry berries, loaf loaves, lemon lemons"
    ),
    "tool": (
        "hammer hammers, knife knives, brush brushes, saw saws, spade spades, ladder ladders, "
        "drill drills, rake rakes, axe axes, wrench wrenches, needle needles"
    ),
}
CATEGORIES = {pair.split()[0]: kind for kind, pairs in _NOUNS.items() for pair in pairs.split(", ")}
PLURALS = dict(pair.split() for pairs in _NOUNS.values() for pair in pairs.split(", "))

NUMBERS = _split_words(
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty"
)
"""Sorted from small to large."""

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "purple", "grey", "pink")
THINGS = _split_words(
    "kite lamp coat bicycle cup chair scarf bag clock vase hat basket guitar mirror drum umbrella"
)
JOBS = _split_words(
    "baker teacher nurse pilot farmer gardener lawyer painter singer writer driver cook"
)
PLACES = _split_words(
    "market station library park museum beach school harbour garden bakery theatre village"
)
DAYS = _split_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _split_words(
    "January February March April May June July August September October November December"
)

PAST = {
    "walks": "walked",
    "runs": "ran",
    "cycles": "cycled",
    "drives": "drove",
    "goes": "went",
    "hurries": "hurried",
    "travels": "travelled",
    "comes": "came",
    "returns": "returned",
    "rides": "rode",
}

ORDERS = {
    "open": ("the window", "the door", "the gate", "the box", "the curtains"),
    "close": ("the window", "the door", "the gate", "the shop", "the curtains"),
    "bring me": ("a cup of tea", "the menu", "a blanket", "the bill", "a glass of water"),
    "send me": ("the report", "the photos", "your address", "the list", "the letter"),
    "clean": ("the kitchen", "the table", "the windows", "the car", "the floor"),
    "wait for": ("the bus", "my brother", "the answer", "the doctor", "my sister"),
    "turn off": ("the lamp", "the radio", "the oven", "the heating", "the music"),
    "call": ("the office", "my sister", "a taxi", "the school", "the doctor"),
    "show me": ("the map", "the garden", "your ticket", "the photos", "the plan"),
    "feed": ("the cat", "the dog", "the birds", "the horse", "the ducks"),
}
WHENS = ("", "", " now", " today", " tomorrow")

PRAISE = {
    "soup": ("hot and tasty", "full of flavour", "simply delicious"),
    "room": ("bright and clean", "warm and quiet", "lovely"),
    "waiter": ("friendly", "kind and quick", "very helpful"),
    "film": ("a joy to watch", "funny and clever", "wonderful"),
    "bed": ("very comfortable", "soft and warm", "perfect"),
    "staff": ("friendly", "kind and patient", "very helpful"),
    "book": ("hard to put down", "beautifully written", "wonderful"),
    "bread": ("fresh from the oven", "soft and warm", "simply delicious"),
    "music": ("beautiful", "a joy to hear", "perfect"),
    "garden": ("full of flowers", "beautiful", "lovely"),
    "service": ("quick and friendly", "excellent", "perfect"),
    "phone": ("fast and light", "easy to use", "excellent"),
}
BLAME = {
    "soup": ("cold and watery", "far too salty", "awful"),
    "room": ("dark and dirty", "cold and noisy", "terrible"),
    "waiter": ("rude", "slow and careless", "very unhelpful"),
    "film": ("a waste of time", "dull and far too long", "terrible"),
    "bed": ("very uncomfortable", "hard and narrow", "broken"),
    "staff": ("rude", "bored and careless", "very unhelpful"),
    "book": ("hard to finish", "badly written", "dull and far too long"),
    "bread": ("stale", "dry and burnt", "awful"),
    "music": ("much too loud", "a pain to hear", "awful"),
    "garden": ("full of rubbish", "dark and muddy", "a mess"),
    "service": ("slow and careless", "terrible", "a mess"),
    "phone": ("slow and heavy", "hard to use", "broken after a day"),
}
