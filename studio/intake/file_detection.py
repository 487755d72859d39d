"""How a file itself is to be read, before anything is known of its rows: its encoding."""

from studio.intake.encodings import Guess, guess
from studio.intake.limits import Limits, Meter
from studio.intake.parts import Part


def guess_encoding(part: Part, limits: Limits) -> Guess:
    with part.open(Meter(limits)) as file:
        return guess(file)
