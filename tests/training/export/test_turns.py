"""Chat templates cut into turns: the parts write what the template does, or it is refused."""

from collections.abc import Sequence

import jinja2
import pytest

from studio.training.export.gguf import turns
from studio.training.export.gguf.turns import NotProvableError, Render, Turn
from tests.training import tiny

LLAMA3 = (
    "{% for m in messages %}{{ ('<|bos|>' if loop.first else '') + '<|header|>' + m.role + "
    "'<|/header|>\n\n' + m.content + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    + tiny.WITHOUT_MARKS
)
MERGED_SYSTEM = (
    "<s>{% set ns = namespace(s='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.s = m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}[INST] {{ ns.s + m.content }} [/INST]{% set ns.s = '' %}"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)


def renderer(template: str) -> Render:
    compiled = jinja2.Environment(autoescape=False).from_string(template)  # noqa: S701 -- no HTML

    def render(messages: Sequence[Turn], /, *, prompts: bool) -> str:
        return compiled.render(messages=messages, add_generation_prompt=prompts)

    return render


TALK: list[Turn] = [
    {"role": "system", "content": 'Say "hi".'},
    {"role": "user", "content": "One\nline"},
    {"role": "assistant", "content": "é"},
    {"role": "user", "content": "And?"},
]


@pytest.mark.parametrize("template", [tiny.WITHOUT_MARKS, LLAMA3, DEFAULT_SYSTEM])
@pytest.mark.parametrize("talk", [TALK, TALK[1:], TALK[1:2]])
def test_parts_write_what_the_template_writes(template: str, talk: list[Turn]) -> None:
    render = renderer(template)
    parts = turns.cut(render)

    assert parts.render(talk, prompts=True) == render(talk, prompts=True)
    assert renderer(parts.to_jinja())(talk, prompts=True) == render(talk, prompts=True)


def test_default_system_prompt_gives_way_to_another() -> None:
    parts = turns.cut(renderer(DEFAULT_SYSTEM))

    assert parts.opening == "<|im_start|>system\nBe helpful.<|im_end|>\n"
    assert parts.system_start == "<|im_start|>system\n"


def test_system_prompt_inside_a_turn_is_left_out() -> None:
    parts = turns.cut(renderer(MERGED_SYSTEM))

    assert (parts.has_system, parts.user_start, parts.answer_start) == (False, "[INST] ", "")


@pytest.mark.parametrize(
    "template",
    [
        tiny.WITHOUT_MARKS.replace("message.content", "message.content | upper"),
        tiny.WITHOUT_MARKS.replace("message.role", "message.role + loop.index|string", 1),
        "{% for m in messages[-1:] %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.role + m.content }}{{ m.content | length }}{% endfor %}",
    ],
)
def test_template_that_is_more_than_its_parts_is_refused(template: str) -> None:
    with pytest.raises(NotProvableError):
        turns.cut(renderer(template))


def test_go_template_leaves_out_what_the_tokenizer_adds() -> None:
    parts = turns.cut(renderer(LLAMA3))

    assert '"<|bos|>' in parts.to_go()
    assert "<|bos|>" not in parts.to_go(without="<|bos|>")


def test_go_template_quotes_every_text() -> None:
    assert turns.cut(renderer(tiny.WITHOUT_MARKS)).to_go() == (
        '{{ if .System }}{{ "<|im_start|>system\\n" }}{{ .System }}{{ "<|im_end|>\\n" }}'
        "{{ end }}{{ range $i, $_ := .Messages }}"
        "{{ $last := eq (len (slice $.Messages $i)) 1 }}"
        '{{ if eq .Role "user" }}{{ "<|im_start|>user\\n" }}{{ .Content }}{{ "<|im_end|>\\n" }}'
        '{{ else if eq .Role "assistant" }}{{ "<|im_start|>assistant\\n" }}{{ .Content }}'
        '{{ if not $last }}{{ "<|im_end|>\\n" }}{{ end }}{{ end }}'
        '{{ if and $last (ne .Role "assistant") }}{{ "<|im_start|>assistant\\n" }}{{ end }}'
        "{{ end }}"
    )
