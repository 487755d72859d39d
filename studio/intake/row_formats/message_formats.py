"""Parse cells, turns, tools and tool calls: of OpenAI, ShareGPT and others, or as plain text."""

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Values
from datetime import date, time
from decimal import Decimal
from typing import Any, cast

from studio.intake.mapping import Mapping
from studio.intake.problems import ProblemCode
from studio.intake.row_formats.image_parts import (
    ImageRef,
    PlacedImage,
    is_image_part,
    listed_images,
    part_image,
    place_turn_images,
    with_placed_images,
)
from studio.intake.row_formats.schema import (
    MESSAGE_ROLES,
    MessageRole,
    ToolCall,
    Turn,
    UnusableRowError,
    make_turn,
)

MEDIA_PART_TYPE = re.compile(
    r"(?:input_?)?(?:image|img|audio|video|file|document|media)(?:_?(?:url|file|data|asset))?s?"
)
"""Types of content parts that are not text: OpenAI's, Anthropic's, and those of processors."""
_BETWEEN_TEXTS = re.compile(r"(?<=['\"])\s+(?=['\"])")
_MAX_LIST_CHARS = 10_000
"""A longer text that is not JSON is no list."""
_TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
_REASONING_PART_TYPES = frozenset({"thinking", "reasoning"})


class MappedRow:
    """A row as its mapping sees it: values by role, with replacements applied."""

    def __init__(self, mapping: Mapping, values: Values[str, Any]) -> None:
        self._mapping = mapping
        self._values = values

    @property
    def uses_images(self) -> bool:
        """Whether the images of the row are used."""
        return self._mapping.media == "use"

    @property
    def needs_markers(self) -> bool:
        """Whether the text must say where images stand, as ShareGPT's convention is."""
        return self._mapping.shape == "sharegpt"

    def image_refs(self) -> list[ImageRef]:
        """Return the images in the columns for them.

        Raises:
            UnusableRowError: a value is no image.

        """
        columns = self._mapping.roles.get("images", [])
        cells = (parse_list_cell(self._values.get(column)) for column in columns)
        return [ref for cell in cells for ref in listed_images(cell)]

    def value(self, role: str) -> Any:  # noqa: ANN401 -- a value from a user's file
        """Return the value of the role's first column, or None."""
        columns = self._mapping.roles.get(role, [])
        return self._mapped_value(columns[0]) if columns else None

    def items(self, role: str) -> list[Any] | None:
        """Return the values of a list in the role's first column, or None if it holds no list."""
        columns = self._mapping.roles.get(role, [])
        listed = parse_list_cell(self._values.get(columns[0])) if columns else None
        if not isinstance(listed, list):
            return None
        return [self._replaced(columns[0], item) for item in listed]

    def by_column(self, role: str) -> dict[str, Any]:
        """Return the value of each of the role's columns."""
        columns = self._mapping.roles.get(role, [])
        return {column: self._mapped_value(column) for column in columns}

    def present(self, role: str) -> dict[str, Any]:
        """Return the value of each of the role's columns that the row has."""
        found = self.by_column(role)
        return {column: value for column, value in found.items() if column in self._values}

    def text(self, role: str) -> str:
        """Return the texts of the role's columns, joined.

        Raises:
            UnusableRowError: a value is not text.

        """
        return self.join(*map(self._mapped_value, self._mapping.roles.get(role, [])))

    def join(self, *values: Any) -> str:  # noqa: ANN401 -- values from a user's file
        return self._mapping.joiner.join(part for part in map(require_text, values) if part.strip())

    def _mapped_value(self, column: str) -> Any:  # noqa: ANN401 -- a value from a user's file
        return self._replaced(column, self._values.get(column))

    def _replaced(self, column: str, value: Any) -> Any:  # noqa: ANN401 -- a value from a user's file
        replacements = self._mapping.values.get(column)
        return replacements.get(to_text(value), value) if replacements else value


def require_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return a value as text.

    Raises:
        UnusableRowError: it is not text.

    """
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            raise UnusableRowError(ProblemCode.NOT_TEXT)
        case int() | float():
            # Tables store a missing number as NaN.
            return "" if value != value else str(value)  # noqa: PLR0124 -- only NaN differs from itself
        case Decimal() | date() | time():
            return str(value)
        # SQuAD has answers of several people; an unanswerable question has none.
        case {"text": [*answers], "answer_start": _}:
            return require_text(answers[0]) if answers else ""
    raise UnusableRowError(ProblemCode.NOT_TEXT)


def to_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return a value as text, as filters and replacements in a mapping compare it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case list() | dict():
            return _dump_json(value)
    try:
        return require_text(value)
    except UnusableRowError:
        return str(value)


def _dump_json(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError as error:
        raise UnusableRowError(ProblemCode.TOO_DEEP) from error
    except TypeError:
        # Maps in column-wise formats may have keys of any type.
        return str(value)


def is_number(text: str) -> bool:
    """Tell whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def content_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return the text of a turn's content, which may consist of parts.

    Media parts are skipped: a row with media gets here only if just its text is used.

    Raises:
        UnusableRowError: a part is neither text nor media; the detail names its type.

    """
    if not isinstance(value, list):
        return require_text(value)
    return "".join(map(_part_text, value))


def _content_with_images(value: Any) -> tuple[str, list[PlacedImage]]:  # noqa: ANN401 -- from a user's file
    """Return the text of a turn's content, and the images among its parts."""
    if not isinstance(value, list):
        return require_text(value), []
    text, images = "", list[PlacedImage]()
    for part in value:
        if is_image_part(part):
            images.append(PlacedImage(len(text), part_image(part)))
        else:
            text += _part_text(part)
    return text, images


def reasoning_text(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    """Return the reasoning among the parts of a turn: Anthropic's `thinking` blocks."""
    parts = value if isinstance(value, list) else []
    return "".join(
        part[key]
        for part in parts
        if isinstance(part, dict) and (key := part.get("type")) in _REASONING_PART_TYPES
        if isinstance(part.get(key), str)
    )


def _part_text(part: Any) -> str:  # noqa: ANN401 -- from a user's file
    match part:
        case str():
            return part
        case {"type": str() as kind} if kind in _REASONING_PART_TYPES or MEDIA_PART_TYPE.fullmatch(
            kind.lower()
        ):
            return ""
        case {"type": str() as kind} if kind not in _TEXT_PART_TYPES:
            raise UnusableRowError(ProblemCode.NOT_TEXT, kind[:100])
        case {"text": {"value": str() as text}}:
            return text
        case {"text": str() as text} | {"value": str() as text}:
            return text
        case {"content": str() as text} | {"refusal": str() as text}:
            return text
    raise UnusableRowError(ProblemCode.NOT_TEXT)


def parse_json_cell(cell: Any) -> Any:  # noqa: ANN401 -- from a user's file
    """Return the list or object in a cell that holds JSON; other values unchanged."""
    if not (isinstance(cell, str) and cell.lstrip()[:1] in {"[", "{"}):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def parse_list_cell(cell: Any) -> Any:  # noqa: ANN401 -- from a user's file
    """Return the list in a cell that holds JSON, or Python's or NumPy's text of a list."""
    value = parse_json_cell(cell)
    if not (isinstance(value, str) and value.lstrip().startswith("[")):
        return value
    try:
        # NumPy writes no commas, and Python would join the texts.
        return ast.literal_eval(_BETWEEN_TEXTS.sub(", ", value[:_MAX_LIST_CHARS].strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value


def parse_tools(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- from a user's file
    """Return the tools of a row, each as {"type": "function", "function": {"name": …}}.

    Raises:
        UnusableRowError: an entry is not a tool.

    """
    match parse_json_cell(value):
        case None | "":
            return []
        case [*tools]:
            return [_parse_tool(parse_json_cell(tool)) for tool in tools]
        case {}:
            return [_parse_tool(parse_json_cell(value))]
    raise UnusableRowError(ProblemCode.BAD_TOOLS)


def _parse_tool(value: Any) -> dict[str, Any]:  # noqa: ANN401 -- from a user's file
    match value:
        case {"function": {"name": str()}}:
            return {**value, "type": "function"}
        case {"name": str()}:
            return {"type": "function", "function": value}
    raise UnusableRowError(ProblemCode.BAD_TOOLS)


def parse_tool_calls(value: Any) -> list[ToolCall]:  # noqa: ANN401 -- from a user's file
    """Return the calls of a turn.

    Raises:
        UnusableRowError: a call has no name, or its arguments are not a JSON object.

    """
    parsed = parse_json_cell(value)
    match parsed:
        case None | "":
            return []
        case [*calls]:
            return [_parse_call(parse_json_cell(call)) for call in calls]
        case {}:
            return [_parse_call(parsed)]
    raise UnusableRowError(ProblemCode.BAD_TOOL_CALL)


def _parse_call(value: Any) -> ToolCall:  # noqa: ANN401 -- from a user's file
    match value:
        case {"function": {"name": str() as name, **rest}} | {"name": str() as name, **rest}:
            arguments = rest.get("arguments", rest.get("parameters"))
            call: ToolCall = {
                "type": "function",
                "function": {"name": name, "arguments": _parse_arguments(arguments)},
            }
            call_id = value.get("id")
            return {"id": to_text(call_id), **call} if call_id else call
    raise UnusableRowError(ProblemCode.BAD_TOOL_CALL)


def _parse_arguments(value: Any) -> str:  # noqa: ANN401 -- from a user's file
    match parse_json_cell(value):
        case None | "":
            return "{}"
        case {**arguments}:
            return json.dumps(arguments, ensure_ascii=False)
    raise UnusableRowError(ProblemCode.BAD_TOOL_CALL)


_TRANSCRIPT_START = re.compile(r"\s*Human: ")
_TRANSCRIPT_SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
"""Turns in the transcripts of Anthropic's preference data."""
_WEIGHT_KEYS = ("weight", "loss_weight", "train", "training", "loss")
"""Keys that control whether an answer is trained on: OpenAI's and those of other trainers."""
_WEIGHT_VALUES = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TURN_KEYS = frozenset({"role", "content", "from", "value", "name", "tool_call_id"})
_ANSWER_KEYS = frozenset({*_WEIGHT_KEYS, *_REASONING_KEYS, "tool_calls", "function_call"})


def parse_turns(value: Any, *, with_images: bool = False) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    """Parse a list of turns; a table cell may hold it as JSON.

    Their images are left out, or are `PlacedImage` until their content is read.

    Raises:
        UnusableRowError: it is not a list, or a turn in it cannot be read.

    """
    match parse_json_cell(value):
        case [{}, *_] as listed:
            return [_parse_turn(turn, with_images=with_images) for turn in listed]
    raise UnusableRowError(ProblemCode.NO_TURNS)


def parse_turns_or_text(
    value: Any,  # noqa: ANN401 -- from a user's file
    role: MessageRole,
    *,
    with_images: bool = False,
) -> list[Turn]:
    """Parse turns written as a list, as one turn, or as text with this role."""
    if not holds_turns(value):
        return [make_turn(role, require_text(value))]
    match parse_json_cell(value):
        case {} as turn:
            named = turn if turn.get("from") else {"role": role} | turn
            return [_parse_turn(named, with_images=with_images)]
        case turns:
            return parse_turns(turns, with_images=with_images)


def holds_turns(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    """Tell whether a value holds turns; JSON alone may be an answer in JSON."""
    match value:
        case {"content": _} | {"value": _} | {"tool_calls": _} | [{}, *_]:
            return True
        case str():
            parsed = parse_json_cell(value)
            listed = parsed if isinstance(parsed, list) else [parsed]
            return bool(listed) and all(map(_is_turn, listed))
    return False


def parse_transcript(value: Any) -> list[Turn]:  # noqa: ANN401 -- from a user's file
    """Return the turns of a transcript; none if the text is not a transcript."""
    if not (isinstance(value, str) and _TRANSCRIPT_START.match(value)):
        return []
    _, *pieces = _TRANSCRIPT_SPEAKER.split(value)
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return [make_turn(MESSAGE_ROLES[speaker.lower()], text.strip()) for speaker, text in pairs]


def _is_turn(value: Any) -> bool:  # noqa: ANN401 -- from a user's file
    match value:
        case {"role": _, "content": _} | {"role": _, "tool_calls": _} | {"from": _, "value": _}:
            return True
    return False


def _parse_turn(turn: Any, *, with_images: bool = False) -> Turn:  # noqa: ANN401 -- from a user's file
    if not isinstance(turn, dict):
        raise UnusableRowError(ProblemCode.NO_TURNS)
    # Parquet stores a key that only other turns have as null.
    raw_role = turn.get("from") if turn.get("role") is None else turn["role"]
    content = turn.get("value") if turn.get("content") is None else turn["content"]
    name = to_text(raw_role).strip().lower()
    role = MESSAGE_ROLES.get(name)
    if role is None:
        raise UnusableRowError(ProblemCode.UNKNOWN_ROLE, name[:100])
    if name == "function_call":
        return (
            make_turn(role, "")
            | _optional_fields(turn, role)
            | {"tool_calls": parse_tool_calls(content)}
        )
    if not with_images:
        return make_turn(role, content_text(content)) | _optional_fields(turn, role)
    text, images = _content_with_images(content)
    parsed = with_placed_images(make_turn(role, text), images)
    own = turn.get("images") or turn.get("image")
    return place_turn_images(parsed, parse_json_cell(own)) | _optional_fields(turn, role)


def _optional_fields(turn: dict[str, Any], role: MessageRole) -> Turn:
    """Return the optional fields of a turn: tool calls, weights, reasoning, names of tools."""
    fields: dict[str, Any] = {}
    if role == "assistant":
        fields["tool_calls"] = parse_tool_calls(turn.get("tool_calls")) or parse_tool_calls(
            turn.get("function_call")
        )
        fields["weight"] = _parse_weight(turn)
        fields["reasoning_content"] = _parse_reasoning(turn)
    elif role == "tool":
        fields["tool_call_id"] = to_text(turn.get("tool_call_id"))
    fields["name"] = to_text(turn.get("name"))
    # Omit empty values, and a weight of 1, which is the default.
    return cast("Turn", {key: value for key, value in fields.items() if value not in ("", [], 1)})


def _parse_reasoning(turn: dict[str, Any]) -> str:
    candidates = [turn[key] for key in _REASONING_KEYS if isinstance(turn.get(key), str)]
    return next(filter(str.strip, [*candidates, reasoning_text(turn.get("content"))]), "")


def _parse_weight(turn: dict[str, Any]) -> int:
    """Return whether an answer is trained on, 0 or 1, from whichever key its turn has."""
    values_by_key = {
        key: to_text(turn[key]).strip() for key in _WEIGHT_KEYS if turn.get(key) is not None
    }
    weights = {_WEIGHT_VALUES.get(text.lower()) for text in values_by_key.values()}
    if None in weights or len(weights) > 1:
        text = ", ".join(f"{key}: {value}" for key, value in values_by_key.items())
        raise UnusableRowError(ProblemCode.BAD_WEIGHT, text[:100])
    return weights.pop() or 0 if weights else 1


def unused_keys(values: Iterable[Any]) -> list[str]:
    """Return the unused keys of turns, in order of first occurrence."""
    keys: dict[str, None] = {}
    for value in filter(holds_turns, values):
        listed = parse_json_cell(value)
        for turn in listed if isinstance(listed, list) else [listed]:
            keys |= dict.fromkeys(_unused_turn_keys(turn) if isinstance(turn, dict) else ())
    return list(keys)


def _unused_turn_keys(turn: dict[Any, Any]) -> Iterator[str]:
    name = to_text(turn.get("from") if turn.get("role") is None else turn["role"])
    answers = MESSAGE_ROLES.get(name.strip().lower()) == "assistant"
    for key, value in turn.items():
        is_read = key in _TURN_KEYS or (answers and key in _ANSWER_KEYS)
        is_read = is_read and (key not in _REASONING_KEYS or isinstance(value, str))
        # A flag that excludes a question from training states the default.
        if not is_read and value not in (None, "", [], {}, False, 0):
            yield str(key)
