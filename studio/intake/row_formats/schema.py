"""Rows as they are kept: what a turn is, and the four kinds of rows made of turns or text."""

from typing import Any, Literal, NotRequired, TypedDict, final

from studio.intake.problems import ProblemCode

MessageRole = Literal["system", "user", "assistant", "tool"]

MESSAGE_ROLES: dict[str, MessageRole] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What the roles are called elsewhere, and what they are here."""


class ToolFunction(TypedDict):
    name: str
    arguments: str
    """The text of a JSON object, as OpenAI writes it. `lessons` hands it on as an object."""


class ToolCall(TypedDict):
    id: NotRequired[str]
    type: Literal["function"]
    function: ToolFunction


class Turn(TypedDict):
    role: MessageRole
    content: str
    """Empty only beside tool calls, and in what a tool gave back."""
    weight: NotRequired[Literal[0, 1]]
    """0: this answer is read, not learnt. Left away means 1."""
    reasoning_content: NotRequired[str]
    """What the answer was thought out by; learnt where the model's chat template writes it."""
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@final
class ConversationRow(TypedDict):
    messages: list[Turn]
    tools: NotRequired[list[dict[str, Any]]]


@final
class TextRow(TypedDict):
    text: str


@final
class PreferenceRow(TypedDict):
    messages: list[Turn]
    """The prompt."""
    chosen: list[Turn]
    rejected: list[Turn]
    tools: NotRequired[list[dict[str, Any]]]


@final
class JudgedRow(TypedDict):
    messages: list[Turn]
    label: bool
    tools: NotRequired[list[dict[str, Any]]]


CanonicalRow = ConversationRow | TextRow | PreferenceRow | JudgedRow
"""One line of train.jsonl or validation.jsonl; all lines of a data set are of one kind."""


class UnusableRowError(Exception):
    """A row that cannot be learnt from. It is counted, told and left out."""

    def __init__(self, code: ProblemCode, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


def make_turn(role: MessageRole, content: str) -> Turn:
    return {"role": role, "content": content}


def validate_conversation(turns: list[Turn]) -> list[Turn]:
    """Return the turns that say something, the last of them an answer.

    Raises:
        UnusableRowError: the conversation has a gap, or no answer in it is to be learnt.

    """
    turns = validate_prompt(turns)
    validate_answers(turns)
    answers = [turn for turn in turns if turn["role"] == "assistant"]
    if all(turn.get("weight") == 0 for turn in answers):
        raise UnusableRowError(ProblemCode.NOTHING_LEARNT)
    return turns


def validate_prompt(turns: list[Turn]) -> list[Turn]:
    """Return the turns that say something, refusing them where a question is missing."""
    turns = [turn for turn in turns if turn["content"].strip() or turn["role"] != "system"]
    asking = [turn for turn in turns if turn["role"] == "user"]
    if not asking or not all(turn["content"].strip() for turn in asking):
        raise UnusableRowError(ProblemCode.MISSING_QUESTION)
    return turns


def validate_answers(turns: list[Turn]) -> list[Turn]:
    """Return the turns, refusing them where an answer is empty or they do not end in one."""
    if not turns or turns[-1]["role"] != "assistant" or any(map(_is_empty_answer, turns)):
        raise UnusableRowError(ProblemCode.MISSING_ANSWER)
    return turns


def _is_empty_answer(turn: Turn) -> bool:
    if turn["role"] != "assistant":
        return False
    return not turn["content"].strip() and "tool_calls" not in turn
