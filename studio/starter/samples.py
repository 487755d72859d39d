"""Sample data for each kind of method, made of the rows of the starter.

A good answer is the starter's own. A bad one is the answer to another question that begins with the
same word: just as fluent, but wrong here. The label of a question is what it asks for, and its
number is how long the answer is. The entities of a question are the people, towns and dates in it.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from studio import starter

SampleName = Literal["comparisons", "ratings", "labels", "numbers", "entities"]
SAMPLES: dict[SampleName, str] = {
    "comparisons": "For each question, an answer that is right and one that is wrong.",
    "ratings": "Questions with one answer each, rated good or bad.",
    "labels": "Questions with one label each: what they ask for.",
    "numbers": "Questions with one number each: how many words the answer has.",
    "entities": "Questions in which people, towns and dates are marked.",
}
"""What the rows of each sample are."""


def filename(name: SampleName) -> str:
    return f"sample-{name}.jsonl"


def write(name: SampleName, path: Path) -> None:
    """Write a sample as JSON lines; it is always the same."""
    rows = _ROWS[name]()
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _comparisons() -> Iterator[dict[str, Any]]:
    """Yield rows of a prompt, a chosen answer and a rejected one."""
    by_word: dict[str, list[str]] = defaultdict(list)
    exchanges = list(_exchanges())
    for prompt, answer in exchanges:
        by_word[prompt.split()[0]].append(answer)
    position: dict[str, int] = defaultdict(int)
    for prompt, answer in exchanges:
        word = prompt.split()[0]
        position[word] += 1
        answers = by_word[word]
        after = answers[position[word] :] + answers[: position[word]]
        wrong = next((other for other in after if other != answer), None)
        if wrong is not None:
            yield {"prompt": prompt, "chosen": answer, "rejected": wrong}


def _ratings() -> Iterator[dict[str, Any]]:
    """Yield rows of a prompt, a completion and its label: good and bad in turn."""
    for number, row in enumerate(_comparisons()):
        is_good = number % 2 == 0
        completion = row["chosen"] if is_good else row["rejected"]
        yield {"prompt": row["prompt"], "completion": completion, "label": is_good}


_LABELS = {
    "make polite": r"Could you please ",
    "find the feeling": r"(Positive|Negative)\.",
    "name the capital": r".*capital of ",
    "fill in a form": r"name: ",
    "find the opposite": r"The opposite of ",
    "find the plural": r"The plural of ",
    "compare numbers": r"The larger number ",
    "rewrite a date": r"[A-Z][a-z]+ \d+, \d{4}$",
    "find the name": r"\w+$",
    "name the group": r"An? .* is an? ",
    "make short": r".* bought ",
}
"""What a question asks for, and how the answer begins."""


def _labels() -> Iterator[dict[str, Any]]:
    """Yield rows of a text and its label."""
    for prompt, answer in _exchanges():
        yield {"text": prompt, "label": _label_of(prompt, answer)}


def _label_of(prompt: str, answer: str) -> str:
    if "past tense" in prompt or "happened yesterday" in prompt:
        return "put in the past"
    fitting = (label for label, beginning in _LABELS.items() if re.match(beginning, answer))
    return next(fitting, "find a fact")


def _numbers() -> Iterator[dict[str, Any]]:
    """Yield rows of a text and its number."""
    for prompt, answer in _exchanges():
        yield {"text": prompt, "number": len(answer.split())}


_FORM = re.compile(r"name: (\w+)\nage: \d+\ntown: (\w+)")
_NAME = re.compile(r"[A-Z][a-z]+")
_DATE = r"(?P<date>\d+ [A-Z][a-z]+ \d{4})"


def _entities() -> Iterator[dict[str, Any]]:
    """Yield rows of a text and its entities: people and towns that some answer names, and dates."""
    exchanges = list(_exchanges())
    forms = [form for _prompt, answer in exchanges for form in _FORM.findall(answer)]
    people = {name for name, _town in forms}
    people |= {answer for _prompt, answer in exchanges if _NAME.fullmatch(answer)}
    towns = {town for _name, town in forms}
    named = [
        rf"\b(?P<{label}>{'|'.join(sorted(names))})\b"
        for label, names in (("person", people), ("town", towns))
    ]
    pattern = re.compile("|".join([*named, _DATE]))
    for prompt, _answer in exchanges:
        found = pattern.finditer(prompt)
        entities = [
            {"start": one.start(), "end": one.end(), "label": one.lastgroup} for one in found
        ]
        yield {"text": prompt, "entities": entities}


_ROWS: dict[SampleName, Callable[[], Iterator[dict[str, Any]]]] = {
    "comparisons": _comparisons,
    "ratings": _ratings,
    "labels": _labels,
    "numbers": _numbers,
    "entities": _entities,
}


def _exchanges() -> Iterator[tuple[str, str]]:
    """Yield the question and the answer of each row that has just one of both."""
    with TemporaryDirectory() as folder:
        starter.write_rows(Path(folder))
        for split in starter.SPLITS:
            with Path(folder, split).open(encoding="utf-8") as file:
                for line in file:
                    messages = json.loads(line)["messages"]
                    if [one["role"] for one in messages] == ["user", "assistant"]:
                        yield messages[0]["content"], messages[1]["content"]
