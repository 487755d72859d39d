"""What several trackers say of a run in the same words."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from studio.protocols.events import AlarmRaised, EventLog, Sampled
from studio.recipe.dotted_keys import flatten
from studio.trackers.contract import Point, RunFacts

ANSWER_COLUMNS = ("step", "stage", "prompt", "reference", "answer")
"""The columns of a table of answers."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 80


def file_name(text: str) -> str:
    """Return a text as the name of a file: readable, and safe everywhere."""
    return _UNSAFE.sub("-", text).strip("-.")[:_MAX_NAME] or "experiment"


def config(facts: RunFacts) -> dict[str, Any]:
    """Return the recipe with dotted names, and where it belongs."""
    own = {"studio.run": facts.run, "studio.url": facts.url, "studio.experiment": facts.experiment}
    return {name: value for name, value in (flatten(facts.recipe) | own).items() if value != ""}


def resolved_config(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the actual dtypes, counts and versions with dotted names."""
    return {f"resolved.{name}": value for name, value in flatten(resolved).items()}


def as_text(value: object) -> str:
    """Return a value of a recipe as text: JSON, but plain strings as they are."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def alarm_text(alarm: AlarmRaised) -> str:
    return " ".join(filter(None, (alarm.message, alarm.hint)))


def answer_row(sample: Sampled) -> tuple[int, str, str, str, str]:
    """Return an answer as a row of `ANSWER_COLUMNS`."""
    return sample.step, sample.stage, sample.prompt, sample.reference, sample.answer


def answers_by_step(samples: Iterable[Sampled]) -> dict[int, list[Sampled]]:
    steps: dict[int, list[Sampled]] = defaultdict(list)
    for sample in samples:
        steps[sample.step].append(sample)
    return steps


def all_answers(log: EventLog, until: int) -> list[Sampled]:
    """Return the answers up to a step; of those to one prompt at one step the last."""
    answers: dict[tuple[str, int, int], Sampled] = {}
    for event in log.find("sampled"):
        if isinstance(event, Sampled) and event.step <= until:
            answers[event.stage, event.step, event.position] = event
    return list(answers.values())


def non_finite(points: Iterable[Point]) -> list[str]:
    """Say which values are not finite: "loss at step 7: nan"."""
    return [
        f"{key} at step {point.step}: {value}"
        for point in points
        for key, value in point.values.items()
        if not math.isfinite(value)
    ]
