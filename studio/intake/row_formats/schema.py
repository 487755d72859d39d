"""The schema of canonical rows, of several kinds, and the training examples they become."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, cast, final

from studio.intake.problems import ProblemCode

STEP_SEPARATOR = "\n"
"""What stands between the steps of a solution, as in TRL's process reward models."""

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
"""Role names in other formats, and the roles they map to."""


class ToolFunction(TypedDict):
    name: str
    arguments: str
    """A JSON object as text, as in OpenAI's format. `to_training_example` makes it an object."""


class ToolCall(TypedDict):
    id: NotRequired[str]
    type: Literal["function"]
    function: ToolFunction


class TurnImage(TypedDict):
    sha256: str
    """Names the image in the folder `images` of the dataset version."""
    at: int
    """Before which character of the turn's content it stands; several may stand at one place."""
    width: int
    height: int
    """In pixels."""


class Turn(TypedDict):
    role: MessageRole
    content: str
    """Empty only with tool calls, and in tool results."""
    weight: NotRequired[Literal[0, 1]]
    """0: this answer is context and not trained on. Defaults to 1."""
    reasoning_content: NotRequired[str]
    """The reasoning before the answer; trained on if the model's chat template includes it."""
    images: NotRequired[list[TurnImage]]
    """Images, sorted by where they stand. A turn with images may have no content."""
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@final
class ConversationRow(TypedDict):
    messages: list[Turn]
    tools: NotRequired[list[dict[str, Any]]]
    labels: NotRequired[list[str]]
    """Of a text with several labels or none, which its last answer names; one label is just the
    last answer."""
    numbers: NotRequired[dict[str, float]]
    """Of a text with numbers, which its last answer names: by column, in column order."""


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


@final
class StepsRow(TypedDict):
    messages: list[Turn]
    """The prompt."""
    steps: list[str]
    """The solution, step by step."""
    correct: list[bool]
    """Whether each step is right."""


@final
class TokensRow(TypedDict):
    text: str
    words: list[str]
    """The words of the text, in order."""
    tags: list[str]
    """The tag of each word in BIO: O outside of entities, else B- or I- with a label."""


@final
class TaskRow(TypedDict):
    messages: list[Turn]
    """The prompt. It ends with a turn that a model answers."""
    item: dict[str, Any]
    """What graders may read, by column: any JSON values."""
    tools: NotRequired[list[dict[str, Any]]]


@final
class PairRow(TypedDict):
    anchor: str
    """A question, a search, or just one of two texts."""
    positive: str
    """The text that belongs to it; with a score, the one it is compared with."""
    negatives: NotRequired[list[str]]
    """Texts that do not belong to it."""
    score: NotRequired[float]
    """How alike the two texts are, on any scale. A row has negatives or a score, not both."""


CanonicalRow = (
    ConversationRow | TextRow | PreferenceRow | JudgedRow | StepsRow | TokensRow | TaskRow | PairRow
)
"""One line of train.jsonl or validation.jsonl; all lines of a dataset have the same kind."""


class UnusableRowError(Exception):
    """A row that cannot be trained on. It is counted, reported and left out."""

    def __init__(self, code: ProblemCode, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail


def make_turn(role: MessageRole, content: str) -> Turn:
    return {"role": role, "content": content}


def validate_conversation(turns: list[Turn]) -> list[Turn]:
    """Return the turns without empty system turns; the last one must be an answer.

    Raises:
        UnusableRowError: a turn is empty, or no answer is trained on.

    """
    turns = validate_prompt(turns)
    validate_answers(turns)
    answers = [turn for turn in turns if turn["role"] == "assistant"]
    if all(turn.get("weight") == 0 for turn in answers):
        raise UnusableRowError(ProblemCode.NOTHING_LEARNT)
    return turns


def validate_prompt(turns: list[Turn]) -> list[Turn]:
    """Return the turns without empty system turns; refuse an empty question, or none."""
    turns = [turn for turn in turns if turn["content"].strip() or turn["role"] != "system"]
    asking = [turn for turn in turns if turn["role"] == "user"]
    if not asking or not all(turn["content"].strip() or turn.get("images") for turn in asking):
        raise UnusableRowError(ProblemCode.MISSING_QUESTION)
    return turns


def validate_task(turns: list[Turn]) -> list[Turn]:
    """Return the turns of a prompt; refuse one that does not end with a turn to answer."""
    turns = validate_prompt(turns)
    if turns[-1]["role"] not in {"user", "tool"}:
        raise UnusableRowError(ProblemCode.NOT_A_TASK)
    return turns


def validate_answers(turns: list[Turn]) -> list[Turn]:
    """Return the turns; refuse an empty answer, or turns that do not end with an answer."""
    if not turns or turns[-1]["role"] != "assistant" or any(map(_is_empty_answer, turns)):
        raise UnusableRowError(ProblemCode.MISSING_ANSWER)
    return turns


def _is_empty_answer(turn: Turn) -> bool:
    if turn["role"] != "assistant":
        return False
    return not turn["content"].strip() and "tool_calls" not in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """What a row teaches: either turns or a text."""

    messages: list[Turn] = field(default_factory=list)
    """Every assistant turn is trained on unless its weight is 0. Tool call arguments are objects
    here, as chat templates expect; in the file they are text, as in OpenAI's format."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    """Every token of it is trained on."""
    rejected: list[Turn] = field(default_factory=list)
    """The worse answer of a preference."""
    is_good: bool | None = None
    """How the last answer is rated; None if it is not."""
    labels: list[str] | None = None
    """The labels that the last answer names; None unless there may be several."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers that the last answer names, by column."""
    steps: Sequence[str] = ()
    """The lines of the last answer, where each is right or wrong."""
    correct: Sequence[bool] = ()
    """Whether each step is right."""
    words: Sequence[str] = ()
    """The words of the text, if each has a tag."""
    tags: Sequence[str] = ()
    """Their tags."""
    item: Mapping[str, Any] | None = None
    """What graders may read of a task, by column; None if the row is no task."""
    pair: Sequence[str] = ()
    """Two texts that belong together, then those that do not belong to the first."""
    score: float | None = None
    """How alike the two texts of a pair are; None if they just belong together."""


def to_training_example(row: Mapping[str, Any]) -> TrainingExample:
    """Return what a canonical row teaches."""
    if "text" in row:
        return TrainingExample(
            text=row["text"], words=row.get("words", ()), tags=row.get("tags", ())
        )
    if "anchor" in row:
        pair = [row["anchor"], row["positive"], *row.get("negatives", ())]
        return TrainingExample(text="\n".join(pair), pair=pair, score=row.get("score"))
    turns = [*row["messages"], *row.get("chosen", [])]
    steps = row.get("steps", ())
    if steps:
        turns.append(make_turn("assistant", STEP_SEPARATOR.join(steps)))
    return TrainingExample(
        messages=[_to_template_turn(turn) for turn in turns],
        tools=row.get("tools", []),
        rejected=[_to_template_turn(turn) for turn in row.get("rejected", [])],
        is_good=row.get("label"),
        labels=row.get("labels"),
        numbers=row.get("numbers", {}),
        steps=steps,
        correct=row.get("correct", ()),
        item=row.get("item"),
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
