"""Convert canonical rows to SFT examples: conversations or plain text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from studio.intake.row_formats.schema import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTExample:
    """The SFT example of a row: either turns or a text."""

    messages: list[Turn] = field(default_factory=list)
    """Every assistant turn is trained on unless its weight is 0. Tool call arguments are objects
    here, as chat templates expect; in the file they are text, as in OpenAI's format."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    """Every token of it is trained on."""


def to_sft_example(row: Mapping[str, Any]) -> SFTExample | None:
    """Return the SFT example of a canonical row, or None if its answer is rated bad."""
    if "text" in row:
        return SFTExample(text=row["text"])
    if row.get("label") is False:
        return None
    turns = [*row["messages"], *row.get("chosen", [])]
    return SFTExample(
        messages=[_to_template_turn(turn) for turn in turns], tools=row.get("tools", [])
    )


def _to_template_turn(turn: Turn) -> Turn:
    if "reasoning_content" in turn:
        # Templates of Qwen and GLM use our key; those of gpt-oss and Gemma use these.
        thought = turn["reasoning_content"]
        turn = cast("Turn", {**turn, "thinking": thought, "reasoning": thought})
    if "tool_calls" not in turn:
        return turn
    calls = [
        {**call, "function": call["function"] | {"arguments": _parse_arguments(call["function"])}}
        for call in turn["tool_calls"]
    ]
    return cast("Turn", {**turn, "tool_calls": calls})


def _parse_arguments(function: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- from a user's file
    return json.loads(function["arguments"])
