"""What a row teaches a model that learns to answer: a conversation, or a running text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from studio.intake.row_formats.schema import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTExample:
    """What is learnt of a row: either turns or a text."""

    messages: list[Turn] = field(default_factory=list)
    """Every assistant turn is learnt unless its weight is 0. The arguments of tool calls are
    objects here, as chat templates read them; in the file they are text, as OpenAI writes them."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    """Every token of it is learnt."""


def to_sft_example(row: Mapping[str, Any]) -> SFTExample | None:
    """Return what a canonical row teaches, or None: a bad example teaches nothing by itself."""
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
        # Qwen's and GLM's templates read it by our name, those of gpt-oss and Gemma by these.
        thought = turn["reasoning_content"]
        turn = cast("Turn", {**turn, "thinking": thought, "reasoning": thought})
    if "tool_calls" not in turn:
        return turn
    calls = [
        {**call, "function": call["function"] | {"arguments": _parse_arguments(call["function"])}}
        for call in turn["tool_calls"]
    ]
    return cast("Turn", {**turn, "tool_calls": calls})


def _parse_arguments(function: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- what a tool is called with
    return json.loads(function["arguments"])
