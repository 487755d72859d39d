"""Cut a chat template into what it writes around each turn, and prove that the parts are the whole.

Conversations of words that no template writes are rendered; what stands between these words is cut
at the turns. Other conversations are then put together from the parts and must equal what the
template writes. Templates that treat turns by their content or position fail, and are said to.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from studio.training.data.chat_templates import ChatTemplateError

Turn = dict[str, str]
"""A turn: `role` and `content`."""


class Render(Protocol):
    """Renders a conversation; with `prompts`, up to the point where the model answers."""

    def __call__(self, turns: Sequence[Turn], /, *, prompts: bool) -> str: ...


_SYSTEM, _FIRST, _ANSWER, _SECOND = "xyzzysystem", "xyzzyfirst", "xyzzyanswer", "xyzzysecond"
"""Words that no template writes by itself."""


class NotProvableError(Exception):
    """A template is more than its parts. The message says why, to follow "because"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnParts:
    """What a template writes around turns."""

    opening: str
    """Before the first turn, if there is no system prompt."""
    system_start: str
    """Before a system prompt, from the beginning."""
    system_end: str
    user_start: str
    user_end: str
    assistant_start: str
    assistant_end: str
    answer_start: str
    """After the last turn, where the model answers."""
    has_system: bool = True
    """Whether a system prompt is a turn of its own, before the others."""

    def render(self, turns: Sequence[Turn], /, *, prompts: bool) -> str:
        """Put a conversation together from the parts."""
        text = self.opening
        for turn in turns:
            role, content = turn["role"], turn["content"]
            if role == "system":
                text = self.system_start + content + self.system_end
            elif role == "user":
                text += self.user_start + content + self.user_end
            else:
                text += self.assistant_start + content + self.assistant_end
        return text + (self.answer_start if prompts else "")

    def to_jinja(self) -> str:
        """Write the parts as a chat template."""
        system = "messages[0].content"
        opening = _jinja(self.opening) if self.opening else ""
        if self.has_system:
            with_system = f"{{{{ {_quote(self.system_start)} + {system} }}}}" + _jinja(
                self.system_end
            )
            opening = (
                "{% if messages and messages[0].role == 'system' %}"
                f"{with_system}{{% else %}}{opening}{{% endif %}}"
            )
        return (
            f"{opening}{{% for message in messages %}}{{% if message.role == 'user' %}}"
            f"{_around(self.user_start, 'message.content', self.user_end)}"
            "{% elif message.role == 'assistant' %}"
            f"{_around(self.assistant_start, 'message.content', self.assistant_end)}"
            "{% endif %}{% endfor %}"
            f"{{% if add_generation_prompt %}}{_jinja(self.answer_start)}{{% endif %}}"
        )

    def to_go(self, *, without: str = "") -> str:
        """Write the parts as a template of Go, as Ollama reads it.

        `without` is a text at the beginning that the tokenizer adds by itself.
        """
        opening = self.opening.removeprefix(without)
        system_start = self.system_start.removeprefix(without)
        head = _go(opening)
        if self.has_system:
            system = f"{_go(system_start)}{{{{ .System }}}}{_go(self.system_end)}"
            other = f"{{{{ else }}}}{head}" if head else ""
            head = f"{{{{ if .System }}}}{system}{other}{{{{ end }}}}"
        user = f"{_go(self.user_start)}{{{{ .Content }}}}{_go(self.user_end)}"
        ending = (
            f"{{{{ if not $last }}}}{_go(self.assistant_end)}{{{{ end }}}}"
            if self.assistant_end
            else ""
        )
        assistant = f"{_go(self.assistant_start)}{{{{ .Content }}}}{ending}"
        return (
            f"{head}{{{{ range $i, $_ := .Messages }}}}"
            "{{ $last := eq (len (slice $.Messages $i)) 1 }}"
            f'{{{{ if eq .Role "user" }}}}{user}'
            f'{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}'
            f'{{{{ if and $last (ne .Role "assistant") }}}}{_go(self.answer_start)}{{{{ end }}}}'
            "{{ end }}"
        )


def cut(render: Render) -> TurnParts:
    """Cut a template into parts, and prove them.

    Raises:
        NotProvableError: other conversations are not put together from these parts.

    """
    user, answer = _turn("user", _FIRST), _turn("assistant", _ANSWER)
    opening, user_end = _between(render([user], prompts=False), _FIRST)
    talk = render([user, answer, _turn("user", _SECOND)], prompts=True)
    _start, to_answer, to_second, to_next = _between(talk, _FIRST, _ANSWER, _SECOND)
    assistant_end = _between(render([user, answer], prompts=False), _FIRST, _ANSWER)[2]
    user_start = _without_start(to_second, assistant_end)
    parts = TurnParts(
        opening=_without_end(opening, user_start),
        system_start="",
        system_end="",
        user_start=user_start,
        user_end=user_end,
        assistant_start=_without_start(to_answer, user_end),
        assistant_end=assistant_end,
        answer_start=_without_start(to_next, user_end),
        has_system=False,
    )
    parts = _with_system(parts, render)
    _prove(parts, render)
    return parts


def _with_system(parts: TurnParts, render: Render) -> TurnParts:
    """Add a system prompt, if the template writes it as a turn of its own."""
    try:
        text = render([_turn("system", _SYSTEM), _turn("user", _FIRST)], prompts=False)
        system_start, to_user, _end = _between(text, _SYSTEM, _FIRST)
        system_end = _without_end(to_user, parts.user_start)
    except (ChatTemplateError, NotProvableError):
        return parts
    return replace(parts, system_start=system_start, system_end=system_end, has_system=True)


def _prove(parts: TurnParts, render: Render) -> None:
    user, answer = _turn("user", "Why?\n\nTell me."), _turn("assistant", "Because.\n* One")
    talks: list[tuple[list[Turn], bool]] = [
        ([user], True),
        ([user, answer], False),
        ([user, answer, _turn("user", "é, 3 < 4")], True),
        ([user, answer, user, answer, user], True),
    ]
    if parts.has_system:
        system = _turn("system", "Be brief.\nBe kind.")
        talks += [([system, *talk], prompts) for talk, prompts in talks]
    for talk, prompts in talks:
        if parts.render(talk, prompts=prompts) != render(talk, prompts=prompts):
            raise NotProvableError("it writes a turn in more than one way")


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _between(text: str, *words: str) -> list[str]:
    """Return what stands before, between and after words that must each occur once, in order."""
    pieces: list[str] = []
    for word in words:
        before, found, text = text.partition(word)
        if not found or word in text:
            raise NotProvableError("it does not write each turn once and in order")
        pieces.append(before)
    return [*pieces, text]


def _without_start(text: str, start: str) -> str:
    if not text.startswith(start):
        raise NotProvableError("what it writes after a turn depends on the next one")
    return text[len(start) :]


def _without_end(text: str, end: str) -> str:
    if not text.endswith(end):
        raise NotProvableError("what it writes before a turn depends on the previous one")
    return text[: len(text) - len(end)]


def _around(start: str, value: str, end: str) -> str:
    return f"{{{{ {_quote(start)} + {value} + {_quote(end)} }}}}"


def _jinja(text: str) -> str:
    return f"{{{{ {_quote(text)} }}}}" if text else ""


def _go(text: str) -> str:
    return f"{{{{ {_quote(text)} }}}}" if text else ""


def _quote(text: str) -> str:
    """Quote a text as Go and Jinja do, which is as JSON does."""
    return json.dumps(text, ensure_ascii=False)
