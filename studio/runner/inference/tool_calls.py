"""Answers that call functions, in whatever way the model's chat template writes a call.

The template writes an example of a call; what is before, between and behind its name and arguments
is how every call looks. Verified with the formats of Hermes (Qwen), Llama 3.1 and Mistral.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.protocols.inference_service import EXAMPLE_CALL, GenerationRequest, ToolCall
from studio.runner.inference.constraints import JSON_STYLE
from studio.runner.inference.text_stream import Likelihood, partial_stop_length

Piece = tuple[int, Likelihood | None]
"""A token, and how likely it was if that is wanted."""

_NAME, ((_KEY, _VALUE),) = EXAMPLE_CALL[0], EXAMPLE_CALL[1].items()
_EXAMPLE = re.compile(rf'(.*?){_NAME}(.*?)\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}(.*)', re.DOTALL)
"""Before, between and behind the name and the arguments of the example."""

_THOUGHT_END = "</think>"
"""Some templates write an empty thought before a call; a model may leave it out."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The text around the name of a function and its arguments."""

    before: str
    between: str
    after: str

    @property
    def mark(self) -> str:
        """What a call begins with."""
        return self.before.split()[0]

    def read(self, text: str) -> list[ToolCall]:
        """Return the calls in a text; none if one of them is not complete."""
        head = f"{_loosely(self.before)}(?P<name>[\\w.-]+){_loosely(self.between)}\\s*"
        calls: list[ToolCall] = []
        place = text.find(self.mark)
        while place >= 0:
            found = re.compile(head).match(text, place)
            try:
                arguments, end = json.JSONDecoder().raw_decode(text, found.end() if found else -1)
            except ValueError:
                return []
            if found is None or not isinstance(arguments, dict):
                return []
            written = text[found.end() : end]
            calls.append(ToolCall(name=found["name"], arguments=written))
            place = text.find(self.mark, end)
        return calls

    def grammar(
        self, tools: Mapping[str, Mapping[str, object]], specials: Mapping[str, int]
    ) -> str:
        """Return the grammar of one call of one of the functions, given by their parameters.

        `specials` are tokens that are not made of text, with their IDs.
        """
        before, between, after = (
            _lark_literals(text, specials) for text in (self.before, self.between, self.after)
        )
        calls = {f"call{place}": name for place, name in enumerate(tools)}
        rules = {"start": [before, "(", " | ".join(calls), ")", after]}
        for rule, name in calls.items():
            schema = {"type": "object", **tools[name], "x-guidance": JSON_STYLE}
            rules[rule] = [json.dumps(name), between, f"{rule}_arguments"]
            rules[f"{rule}_arguments"] = ["%json", json.dumps(schema)]
        return "\n".join(": ".join((rule, " ".join(parts))) for rule, parts in rules.items())


def find_format(request: GenerationRequest, tokenizer: PreTrainedTokenizerBase) -> CallFormat:
    """Return how the model's chat template writes calls.

    Raises:
        InvalidError: it writes them in another way than by a name with JSON behind it.

    """
    ids = list(request.call_example)
    while ids and ids[-1] in request.stops:
        ids.pop()
    text: str = tokenizer.decode(ids, skip_special_tokens=False)
    found = _EXAMPLE.fullmatch(text)
    if found is None or not found[1].strip():
        raise InvalidError(
            "This model's chat template writes calls of functions in a form that cannot be read.",
            hint="Leave out tools, or choose a chat template that writes calls as JSON.",
        )
    before = found[1].rpartition(_THOUGHT_END)[2].lstrip() if _THOUGHT_END in found[1] else found[1]
    return CallFormat(before, found[2], found[3].rstrip())


@dataclass(slots=True)
class CallReader:
    """Holds back what is, or may become, a call; the rest of an answer is text."""

    form: CallFormat
    decode: Callable[[list[int]], str]
    _held: list[Piece] = field(default_factory=list)
    _is_call: bool = False

    def add(self, piece: Piece) -> list[Piece]:
        """Add a piece of an answer, and return those that are text."""
        self._held.append(piece)
        if self._is_call:
            return []
        text = self._held_text()
        self._is_call = self.form.mark in text
        if self._is_call or partial_stop_length(text, self.form.mark):
            return []
        released, self._held = self._held, []
        return released

    def finish(self) -> tuple[list[ToolCall], list[Piece]]:
        """Return the calls at the end of the answer, or the pieces that turned out to be text."""
        calls = self.form.read(self._held_text()) if self._is_call else []
        return calls, [] if calls else self._held

    def _held_text(self) -> str:
        return self.decode([token for token, _likelihood in self._held])


def _loosely(text: str) -> str:
    """Return a pattern for a text that may have other white space."""
    return r"\s*".join(map(re.escape, text.split()))


def _lark_literals(text: str, specials: Mapping[str, int]) -> str:
    """Return a text as literals of a Lark grammar, where special tokens have their IDs."""
    longest_first = sorted(specials, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})" if specials else "(?!)", text)
    literals = (f"<[{specials[part]}]>" if part in specials else json.dumps(part) for part in parts)
    return " ".join(literal for literal in literals if literal != '""')
