"""Write the Modelfile from which Ollama makes a model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from studio.training.data.rows import TrainingRow

_QUOTES = '"""'
USUAL_CONTEXT = 4096
"""Tokens that Ollama lets a model read by default; more cost memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelfileFacts:
    """What a Modelfile says."""

    file: str
    template: str
    """In Go's language."""
    system: str
    """The system prompt that all rows share; "" if there is none."""
    stops: Sequence[str]
    context: int


def write(facts: ModelfileFacts) -> str:
    """Return the text of a Modelfile."""
    lines = [f"FROM ./{facts.file}", f"TEMPLATE {_QUOTES}{facts.template}{_QUOTES}"]
    if facts.system and _QUOTES not in facts.system and not facts.system.endswith('"'):
        lines.append(f"SYSTEM {_QUOTES}{facts.system}{_QUOTES}")
    lines += [f'PARAMETER stop "{stop}"' for stop in facts.stops]
    lines.append(f"PARAMETER num_ctx {facts.context}")
    return "\n".join(lines) + "\n"


def shared_system(rows: Iterable[TrainingRow]) -> str:
    """Return the system prompt with which all conversations begin; "" if they differ."""
    found = {_system_of(row) for row in rows if row.text is None}
    return found.pop() if len(found) == 1 else ""


def choose_context(most: int | None, trained: int) -> int:
    """Return how many tokens the model reads: what is usual, or its rows had, if it can."""
    wanted = max(USUAL_CONTEXT, trained)
    return min(wanted, most) if most else wanted


def _system_of(row: TrainingRow) -> str:
    first = next(iter(row.messages), {})
    return str(first["content"]) if first.get("role") == "system" else ""
