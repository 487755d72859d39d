"""How turns are written for a model, and where in the text its answers stand.

A model learns an answer together with the mark that ends it: without that mark it would never
learn to stop. Templates that say where answers stand (`{% generation %}`) are believed; in others
an answer begins where the prompt before it ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from studio.errors import TrainingError

Message = Mapping[str, str]
Span = tuple[int, int]

_CHATML = (
    "{{ BOS }}{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{{ 'END' }}{% endgeneration %}"
    "{% else %}{{ message.content + 'END' }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_PLAIN = (
    "{{ BOS }}{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    "{{ 'Assistant:' }}{% generation %}{{ ' ' + message.content }}{{ 'END' }}{% endgeneration %}"
    "{{ '\\n' }}"
    "{% else %}{{ message.role | capitalize + ': ' + message.content + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
_IM_END = "<|im_end|>"
_PROBE = "Xyzzy"


class TemplateRefusedError(TrainingError):
    """A chat template that fails; where that is a row's fault, the row is found and named."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "chat_template_refused",
            f"The model's chat template fails: {reason}.",
            hint="Choose another chat template.",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation as text, and the character spans a model learns from it."""

    text: str
    answers: list[Span]


def install(
    tokenizer: PreTrainedTokenizerBase, choice: Literal["model", "chatml", "plain"]
) -> None:
    """Give the tokenizer the chosen template, which is then saved with it.

    Raises:
        TrainingError: the model has no template of its own, and none was chosen.

    """
    if choice == "model":
        if not tokenizer.chat_template:
            raise TrainingError(
                "no_chat_template",
                "This model has no chat template: it was never taught to hold a conversation.",
                hint='Set "Chat template" to chatml or plain.',
            )
        return
    if choice == "chatml" and _IM_END in tokenizer.get_vocab():
        tokenizer.eos_token = _IM_END
    text = _CHATML if choice == "chatml" else _PLAIN
    opening = "bos_token" if _opens_with_bos(tokenizer) else "''"
    tokenizer.chat_template = text.replace("BOS", opening).replace("'END'", "eos_token")


class Template:
    """A tokenizer's chat template, with what it writes after an answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._text = tokenizer.get_chat_template()
        self._tokens: dict[str, Any] = dict(tokenizer.special_tokens_map)
        self._marked = "generation %}" in self._text or "generation -%}" in self._text
        tail = self._tail()
        special = _special_tokens(tokenizer)
        self.closing = tail.rstrip() or tail
        """What stands between the end of an answer and the next turn."""
        self.ending = "" if any(token in tail for token in special) else tokenizer.eos_token or ""
        """What we add after the last answer, where the template forgets to end it."""
        self._stop_token = next((token for token in special if tail.startswith(token)), "")
        ends = {tokenizer.eos_token, self._stop_token} - {"", None}
        self.stops: list[int] = sorted(tokenizer.convert_tokens_to_ids(list(ends)))
        """The tokens that end an answer."""

    def prompt(self, messages: Sequence[Message]) -> str:
        """Write a conversation that is the model's turn to continue."""
        return self._render([messages], add_generation_prompt=True)[0][0]

    def write(self, conversations: Sequence[Sequence[Message]]) -> list[Written]:
        """Write whole conversations, each of which ends in an answer."""
        texts, marks = self._render(conversations, return_assistant_tokens_mask=self._marked)
        if not self._marked:
            marks = [self._find(*pair) for pair in zip(texts, conversations, strict=True)]
        return [self._close(*pair) for pair in zip(texts, marks, strict=True)]

    def _render(
        self, conversations: Sequence[Sequence[Message]], **options: bool
    ) -> tuple[list[str], list[list[Span]]]:
        try:
            texts, marks = render_jinja_template(
                conversations=list(conversations),
                chat_template=self._text,
                **options,
                **self._tokens,
            )
        except TemplateError as error:
            raise TemplateRefusedError(str(error).rstrip(".")) from error
        return texts, marks

    def _tail(self) -> str:
        probe = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        return self._render([probe])[0][0].rpartition(_PROBE)[2]

    def _find(self, text: str, messages: Sequence[Message]) -> list[Span]:
        """Find answers in a text whose template does not mark them."""
        spans: list[Span] = []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                done = spans[-1][1] if spans else 0
                spans.append(self._span(text, messages[: i + 1], done))
        return spans

    def _span(self, text: str, messages: Sequence[Message], done: int) -> Span:
        *before, answer = messages
        content = answer["content"].strip()
        start = max(done, self._opening_length(text, before))
        found = text.find(content, start)
        if content and found >= 0:
            return start, found + len(content)
        # The template rewrote the answer (dropped its reasoning, say): it ends where turns end.
        end = text.find(self.closing, start) if self.closing.strip() else -1
        return start, end if end >= 0 else len(text.rstrip())

    def _opening_length(self, text: str, before: Sequence[Message]) -> int:
        if not before:
            return 0
        opening = self.prompt(before)
        if text.startswith(opening):
            return len(opening)
        # What a template writes only when prompting (an opened thought, say) is not in the text.
        pairs = enumerate(zip(opening, text, strict=False))
        return next((i for i, (one, other) in pairs if one != other), len(text))

    def _close(self, text: str, spans: list[Span]) -> Written:
        """Let each answer reach over the mark that ends it."""
        closed = [(start, end + self._closing_length(text, end)) for start, end in spans]
        if self.ending and closed:
            start, end = closed[-1]
            text = text[:end] + self.ending
            closed[-1] = (start, len(text))
        return Written(text, closed)

    def _closing_length(self, text: str, end: int) -> int:
        if text.endswith(self.closing, 0, end):
            return 0
        fits = (mark for mark in (self.closing, self._stop_token) if text.startswith(mark, end))
        return len(next(fits, ""))


def _opens_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    return bool(tokenizer.bos_token) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return every special token, longest first, so that no token hides behind its own prefix."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
