"""The format of a conversation: one row of an instruction dataset."""

from typing import Literal, TypedDict


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


class Row(TypedDict):
    messages: list[Message]


def conversation(*turns: str, system: str = "") -> Row:
    """Build a conversation from alternating user and assistant turns, after any system prompt."""
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    spoken: list[Message] = [
        {"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)
    ]
    return {"messages": opening + spoken}
