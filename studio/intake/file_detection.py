"""How a file itself is to be read, before anything is known of its rows: its encoding.

What nothing in the file says for certain is a guess, told as a question with a sample.
"""

from dataclasses import dataclass, field
from pathlib import Path

from studio.intake.encodings import Guess, Reading, guess, samples
from studio.intake.formats import Format
from studio.intake.limits import Limits, Meter
from studio.intake.mapping import FileOptions
from studio.intake.parts import Part, parts

TEXTS: frozenset[Format] = frozenset({"jsonl", "json", "csv", "text", "markdown"})
"""Formats that are text, and so in some encoding."""


@dataclass(slots=True, kw_only=True)
class DetectedFile:
    options: FileOptions
    questions: list[str] = field(default_factory=list)
    """What a person should look at, in sentences."""
    is_likely: bool = True
    """Whether what was guessed is probably right."""
    encodings: list[Reading] = field(default_factory=list)
    """How the text reads in the encoding that was guessed, and in those that came next."""


def detect_file(path: Path, kind: Format, limits: Limits, options: FileOptions) -> DetectedFile:
    """Return how to read a file; what `options` say already stays as it is.

    Raises:
        InvalidError: an archive cannot be read.
        SlowReadingError: there is no time left for it.

    """
    found = DetectedFile(options=options)
    if kind in TEXTS:
        with parts(path) as opened:
            _detect_encoding(found, opened.parts, limits)
    return found


def guess_encoding(part: Part, limits: Limits) -> Guess:
    with part.open(Meter(limits)) as file:
        return guess(file)


def _detect_encoding(found: DetectedFile, opened: list[Part], limits: Limits) -> None:
    if found.options.encoding:
        found.encodings = _readings(opened, limits, found.options.encoding)
        return
    guesses = [guess_encoding(part, limits) for part in opened]
    guessed = [one for one in guesses if one.is_guessed]
    if not guessed:
        return
    if len({one.encoding for one in guesses}) == 1:
        found.options = found.options.model_copy(update={"encoding": guessed[0].encoding})
    found.is_likely = all(one.is_likely for one in guessed)
    found.encodings = guessed[0].readings
    first = guessed[0].readings[0]
    found.questions.append(
        f"The text is not UTF-8. It is read as {first.label}, which is a guess: are these "
        f"characters right? {first.sample}"
    )


def _readings(opened: list[Part], limits: Limits, chosen: str) -> list[Reading]:
    """Return how the text reads in the encoding that was chosen, and in others."""
    for part in opened:
        with part.open(Meter(limits)) as file:
            read = samples(file, chosen)
        if read:
            return read
    return []
