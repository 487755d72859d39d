"""The shape of a conversation: what one row of an instruction data set holds."""

from typing import Literal, TypedDict


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


class Row(TypedDict):
    messages: list[Message]


def conversation(*turns: str, system: str = "") -> Row:
    """Read turns as user, assistant, user, ... after the system's word, if there is one."""
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    spoken: list[Message] = [
        {"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)
    ]
    return {"messages": opening + spoken}
