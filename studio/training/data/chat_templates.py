"""Render turns and tools with a model's chat template, and find the answers in the text.

A model learns an answer together with the end mark behind it: without that mark it would never
learn to stop. If the template marks answers itself (`{% generation %}`), those spans are used;
otherwise an answer begins where the prompt before it ends.

In OpenAI's format, a tool call's arguments are JSON in a string. Most templates serialise objects
to JSON themselves, a few expect strings; a probe finds out which. A template without tool support
omits tools silently, so its output is checked.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.recipe.chat_template_texts import IM_END, template_text
from studio.training.data import image_messages
from studio.training.data.rows import Message, TrainingRow, is_trained_on
from studio.training.data.template_process import Span, TemplateFailure, TemplateProcess
from studio.training.models import tokenizers

_DEFINED, _CALLED, _GIVEN, _RETURNED = "xyzzy_defined", "xyzzy_called", "plover", "plugh42"
"""Words that no template writes by itself."""


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """Which parts of tool use a template renders."""

    definitions: bool
    calls: bool
    results: bool
    as_objects: bool = True
    """Whether it expects a call's arguments as parsed objects."""


class RenderRow(Protocol):
    """Renders a row, or returns "" if the template refuses it."""

    def __call__(self, row: TrainingRow, /, *, as_objects: bool) -> str: ...


def detect_tool_support(write: RenderRow) -> ToolSupport:
    """Find out which parts of tool use a template renders."""
    defined = write(
        TrainingRow(messages=_QUESTION, tools=(_probe_tool(_DEFINED),)), as_objects=True
    )
    conversation = TrainingRow(messages=_TALK, tools=(_probe_tool(_CALLED),))
    for as_objects in (True, False):
        text = write(conversation, as_objects=as_objects)
        # Python's own format for an object is not JSON: such a template needs strings.
        if _GIVEN in text and f"'{_GIVEN}'" not in text:
            return ToolSupport(
                _DEFINED in defined, calls=True, results=_RETURNED in text, as_objects=as_objects
            )
    return ToolSupport(_DEFINED in defined, calls=False, results=False)


def has_tools(row: TrainingRow) -> bool:
    return bool(row.tools) or any(turn.get("tool_calls") for turn in row.messages)


def missing_support(row: TrainingRow, support: ToolSupport) -> str:
    """Return which of a row's tool features the template would omit, or ""."""
    calls = any(turn.get("tool_calls") for turn in row.messages)
    if row.tools and not support.definitions:
        return "it does not render tool definitions"
    if calls and not support.calls:
        return "it does not render tool calls"
    if calls and not support.results and any(turn["role"] == "tool" for turn in row.messages):
        return "it does not render tool results"
    return ""


def to_template_message(message: Message, *, as_objects: bool = True) -> dict[str, Any]:
    """Return a turn in the form templates expect."""
    turn = {name: value for name, value in message.items() if name != "weight"}
    if not turn.get("tool_calls"):
        turn.pop("tool_calls", None)
        return turn
    convert: Callable[[Any], Any] = _parse_arguments if as_objects else _dump_arguments
    return turn | {"tool_calls": [_convert_call(call, convert) for call in turn["tool_calls"]]}


def _convert_call(call: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 -- from a user's file
    function = call["function"]
    arguments = change(function.get("arguments", "{}"))
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _parse_arguments(arguments: Any) -> Any:  # noqa: ANN401 -- from a user's file
    """Parse arguments to an object; invalid JSON is returned as the model wrote it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _dump_arguments(arguments: Any) -> str:  # noqa: ANN401 -- from a user's file
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _probe_tool(name: str) -> dict[str, Any]:
    properties = {"colossal": {"type": "string", "description": "Said aloud."}}
    parameters = {"type": "object", "properties": properties, "required": ["colossal"]}
    function = {"name": name, "description": "Moves you.", "parameters": parameters}
    return {"type": "function", "function": function}


_ID = "abcde1234"
"""The length that the strictest templates require."""
_QUESTION: tuple[Message, ...] = ({"role": "user", "content": "?"},)
_TALK: tuple[Message, ...] = (
    *_QUESTION,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": _ID,
                "type": "function",
                "function": {"name": _CALLED, "arguments": json.dumps({"colossal": _GIVEN})},
            }
        ],
    },
    {"role": "tool", "content": _RETURNED, "tool_call_id": _ID, "name": _CALLED},
    {"role": "assistant", "content": "."},
)


_PROBE_WORD = "Xyzzy"
_PROBE: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": _PROBE_WORD},
)
_PROMPTS_AT_ONCE = 100
"""Each is as long as its conversation up to there."""


_NO_IMAGES = TrainingError(
    "bad_row",
    "The data has images, which this model or method cannot read.",
    hint="Choose an image-text model and the method Vision, or a dataset without images.",
)


class ChatTemplateError(TrainingError):
    """A chat template failed; if a particular row caused it, that row is found and named."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "chat_template_refused",
            f"The model's chat template fails: {reason}.",
            hint="Choose another chat template.",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """A conversation as text, and the character spans that are trained on."""

    text: str
    answers: list[Span]


def set_chat_template(
    tokenizer: PreTrainedTokenizerBase, choice: Literal["model", "chatml", "plain", "none"]
) -> None:
    """Give the tokenizer the chosen template, which is then saved with it.

    Raises:
        TrainingError: the model has no template, and none was chosen.

    """
    if choice == "model":
        if not tokenizer.chat_template:
            raise TrainingError(
                "no_chat_template",
                "This model has no chat template: it was not trained on conversations.",
                hint="Choose a chat template: chatml or plain.",
            )
        return
    if choice == "chatml" and IM_END in tokenizer.get_vocab():
        tokenizer.eos_token = IM_END
    opening = "bos_token" if _opens_with_bos(tokenizer) else "''"
    tokenizer.chat_template = template_text(choice, opening)


_Key = tuple[str, dict[str, Any], int]
_loaded: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[_Key, "ChatTemplate"]] = (
    WeakKeyDictionary()
)


def load(tokenizer: PreTrainedTokenizerBase) -> "ChatTemplate":
    """Return a tokenizer's chat template, the same one until it or the special tokens change.

    Each has a process, which takes a third of a second to start.
    """
    key = (tokenizer.get_chat_template(), dict(tokenizer.special_tokens_map), len(tokenizer))
    known = _loaded.get(tokenizer)
    if known is None or known[0] != key:
        known = _loaded[tokenizer] = (key, ChatTemplate(tokenizer))
    return known[1]


class ChatTemplate:
    """A tokenizer's chat template, and what it writes after an answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._text = tokenizer.get_chat_template()
        self._process = TemplateProcess(self._text, dict(tokenizer.special_tokens_map))
        self._reads_images = tokenizers.image_tokens(tokenizer) is not None
        self._needs_parts = self._reads_images and not self._renders_texts()
        self._marked = "generation %}" in self._text or "generation -%}" in self._text
        tail = self._text_after_answer()
        special = _special_tokens(tokenizer)
        self.closing = tail.rstrip() or tail
        """The text between the end of an answer and the next turn."""
        self.ending = "" if any(token in tail for token in special) else tokenizer.eos_token or ""
        """The end mark we add after the last answer, if the template omits it."""
        self._stop_token = next((token for token in special if tail.startswith(token)), "")
        ends = {tokenizer.eos_token, self._stop_token} - {"", None}
        self.stop_tokens: list[int] = sorted(tokenizer.convert_tokens_to_ids(list(ends)))
        """The tokens that end an answer."""

    @property
    def hash(self) -> str:
        """The first digits of its SHA-256; they differ between templates."""
        return hashlib.sha256(self._text.encode()).hexdigest()[:8]

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
        """Render a conversation up to the point where the model answers."""
        return self._render(
            [TrainingRow(messages=messages, tools=tools)], add_generation_prompt=True
        )[0][0]

    def render_turns(self, messages: Sequence[Message], *, prompts: bool) -> str:
        """Render a conversation as it is; with `prompts`, up to the point of the next answer."""
        return self._render([TrainingRow(messages=messages)], add_generation_prompt=prompts)[0][0]

    def render(self, rows: Sequence[TrainingRow]) -> list[RenderedConversation]:
        """Render whole conversations, each of which ends in an answer that is trained on.

        A task is rendered up to the point where the model answers.

        Raises:
            ChatTemplateError: the template fails, or would omit tools or their calls.

        """
        for row in rows:
            if problem := missing_support(row, self.tool_support) if has_tools(row) else "":
                raise ChatTemplateError(problem)
        answered = iter(self._render_answered([row for row in rows if not row.is_task]))
        prompts = iter(self._render_prompts([row for row in rows if row.is_task]))
        return [next(prompts if row.is_task else answered) for row in rows]

    def _render_prompts(self, rows: Sequence[TrainingRow]) -> list[RenderedConversation]:
        texts, _marks = self._render(rows, add_generation_prompt=True)
        return [RenderedConversation(text, []) for text in texts]

    def _render_answered(self, rows: Sequence[TrainingRow]) -> list[RenderedConversation]:
        texts, marks = self._render(rows, return_assistant_tokens_mask=self._marked)
        if not self._marked:
            prompts = self._render_prompts_of_answers(rows)
            marks = [self._find_answers(*pair, prompts) for pair in zip(texts, rows, strict=True)]
        spans = [
            self._trained_spans(*row_parts) for row_parts in zip(texts, rows, marks, strict=True)
        ]
        return [self._include_end_marks(*pair) for pair in zip(texts, spans, strict=True)]

    def turn_starts(self, row: TrainingRow, text: str) -> list[int]:
        """Return where in its text each turn begins; turns the template merges begin together."""
        starts = [0]
        for i in range(1, len(row.messages)):
            try:
                before = self._render([TrainingRow(messages=row.messages[:i], tools=row.tools)])[0][
                    0
                ]
            except ChatTemplateError:  # The template may require turns in pairs, for example.
                before = ""
            starts.append(max(starts[-1], _common_prefix_length(before, text)))
        return starts

    @cached_property
    def tool_support(self) -> ToolSupport:
        """Which parts of tool use the template renders."""
        return detect_tool_support(self._render_or_empty)

    def _render_or_empty(self, row: TrainingRow, *, as_objects: bool) -> str:
        """Render a row, or return "" if the template refuses it."""
        turns = [
            self._with_parts(message, to_template_message(message, as_objects=as_objects))
            for message in row.messages
        ]
        try:
            return self._render_messages([turns], row.tools)[0][0]
        except ChatTemplateError:
            return ""

    def _render(
        self, rows: Sequence[TrainingRow], **options: bool
    ) -> tuple[list[str], list[list[Span]]]:
        texts: list[str] = []
        marks: list[list[Span]] = []
        for tools, group in groupby(rows, key=lambda row: row.tools):
            turns = [
                [self._to_template_message(message) for message in row.messages] for row in group
            ]
            group_texts, group_marks = self._render_messages(turns, tools, **options)
            texts += group_texts
            marks += group_marks
        return texts, marks

    def _to_template_message(self, message: Message) -> dict[str, Any]:
        if not message.get("tool_calls"):
            return self._with_parts(message, to_template_message(message))
        turn = to_template_message(message, as_objects=self.tool_support.as_objects)
        return self._with_parts(message, turn)

    def _with_parts(self, message: Message, turn: dict[str, Any]) -> dict[str, Any]:
        """Return a turn with its content as parts, if it has images or the template needs them.

        Raises:
            TrainingError: it has images, and the model reads none.

        """
        has_images = bool(turn.pop("images", None))
        if has_images and not self._reads_images:
            raise _NO_IMAGES
        if not has_images and not self._needs_parts:
            return turn
        return turn | {"content": image_messages.to_parts(message)}

    def _renders_texts(self) -> bool:
        """Whether the template renders content that is a text, and not only lists of parts."""
        try:
            return _PROBE_WORD in self._render_messages([list(_PROBE)])[0][0]
        except ChatTemplateError:
            return False

    def _render_messages(
        self,
        conversations: list[list[dict[str, Any]]],
        tools: Sequence[Any] = (),
        **options: bool,
    ) -> tuple[list[str], list[list[Span]]]:
        try:
            return self._process.render(
                conversations, [dict(tool) for tool in tools] or None, **options
            )
        except TemplateFailure as error:
            raise ChatTemplateError(error.reason) from error

    def _text_after_answer(self) -> str:
        probe = [self._to_template_message(message) for message in _PROBE]
        return self._render_messages([probe])[0][0].rpartition(_PROBE_WORD)[2]

    def _render_prompts_of_answers(self, rows: Sequence[TrainingRow]) -> Iterator[str]:
        """Yield the prompt of each answer that has one, some of them rendered at a time."""
        befores = (
            TrainingRow(messages=row.messages[:i], tools=row.tools)
            for row in rows
            for i, message in enumerate(row.messages)
            if i and message["role"] == "assistant"
        )
        while some := list(islice(befores, _PROMPTS_AT_ONCE)):
            yield from self._render(some, add_generation_prompt=True)[0]

    def _find_answers(self, text: str, row: TrainingRow, prompts: Iterator[str]) -> list[Span]:
        """Find the answers in a text whose template does not mark them.

        `prompts` are those of the answers that have one.
        """
        spans: list[Span] = []
        for i, message in enumerate(row.messages):
            if message["role"] == "assistant":
                done = spans[-1][1] if spans else 0
                # Text a template adds only when prompting (such as an opened thought) is not in it.
                opening = _common_prefix_length(next(prompts), text) if i else 0
                spans.append(self._answer_span(text, message, max(done, opening)))
        return spans

    def _answer_span(self, text: str, answer: Message, start: int) -> Span:
        content = answer["content"].strip()
        content_start = text.find(content, start)
        content_end = content_start + len(content) if content and content_start >= 0 else -1
        if content_end >= 0 and not answer.get("tool_calls"):
            return start, self._include_spaces(text, content_end, answer["content"])
        # The template added to the answer or rewrote it: it ends where turns end.
        end = text.find(self.closing, max(start, content_end)) if self.closing.strip() else -1
        return start, end if end >= 0 else len(text.rstrip())

    def _include_spaces(self, text: str, end: int, content: str) -> int:
        """Include spaces at the end of an answer, if the template keeps them before its mark."""
        spaces = content[len(content.rstrip()) :]
        if text.startswith(self.closing, end) or not text.startswith(spaces, end):
            return end
        return end + len(spaces)

    def _trained_spans(self, text: str, row: TrainingRow, marks: list[Span]) -> list[Span]:
        """Return the answers except those of weight 0."""
        answers = [turn for turn in row.messages if turn["role"] == "assistant"]
        if all(map(is_trained_on, answers)):
            return marks
        if len(marks) != len(answers):  # The template marks answers in pieces, or not all of them.
            muted = self._find_answers(text, row, self._render_prompts_of_answers([row]))
            muted = [
                span for span, turn in zip(muted, answers, strict=True) if not is_trained_on(turn)
            ]
            return [mark for mark in marks if not any(_overlap(mark, span) for span in muted)]
        return [mark for mark, turn in zip(marks, answers, strict=True) if is_trained_on(turn)]

    def _include_end_marks(self, text: str, spans: list[Span]) -> RenderedConversation:
        """Extend each answer over the mark that ends it."""
        closed = [(start, end + self._closing_length(text, end)) for start, end in spans]
        if self.ending and closed:
            start, end = closed[-1]
            text = text[:end] + self.ending
            closed[-1] = (start, len(text))
        return RenderedConversation(text, closed)

    def _closing_length(self, text: str, end: int) -> int:
        if text.endswith(self.closing, 0, end):
            return 0
        matching = (mark for mark in (self.closing, self._stop_token) if text.startswith(mark, end))
        return len(next(matching, ""))


def _common_prefix_length(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    if second.startswith(first):
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (left, right) in pairs if left != right), len(second))


def _overlap(first: Span, second: Span) -> bool:
    return first[0] < second[1] and second[0] < first[1]


def _opens_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(tokenizer.bos_token) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return every special token, longest first, so that none is hidden by its own prefix."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
