"""Chat templates in a process of their own: what comes back, and what ends that process."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from studio import starter
from studio.graders.python_process import seal_status
from studio.processes.seal import WALLS
from studio.training.data import chat_templates
from studio.training.data.template_process import (
    TemplateFailure,
    TemplateLimits,
    TemplateProcess,
    start_early,
)
from tests.faults.test_hostile_templates import FAILING, GREEDY, ORDINARY
from tests.training import tiny
from tests.training.data.test_chat_templates import MARKS_WITHOUT_END, NO_END_AT_ALL, THINKING
from tests.training.data.test_tool_calls import TOOL, of_family

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "extra": ["<a>", "<b>"]}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Grüße, 世界 \ud83d 👋 \u2028 <b>&amp;</b>"},
    {"role": "assistant", "content": "Yo", "reasoning": "why", "n": [1, 2.5, None, True]},
]
PARTS = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
TEMPLATES = {
    "marks": tiny.WITH_MARKS,
    "no marks": tiny.WITHOUT_MARKS,
    "short marks": MARKS_WITHOUT_END,
    "no end": NO_END_AT_ALL,
    "thinking": THINKING,
    "starter": (starter.MODEL / "chat_template.jinja").read_text("utf-8"),
    "tokens": "{{ bos_token ~ eos_token ~ extra }}",
    "json": "{{ messages | tojson(indent=2) }}{{ tools | tojson }}{{ messages }}",
    "loop controls": "{% for one in messages %}{% break %}{% endfor %}.",
    **{name: text for name, (text, _) in ORDINARY.items()},
    **{name: of_family(name) for name in ("qwen2_5", "qwen3", "deepseekv3", "llama3")},
}


def ended(pid: int, act: Callable[[], object]) -> bool:
    """Whether a process ends once something is done."""
    child = os.pidfd_open(pid)
    try:
        act()
        return bool(select.select([child], [], [], 60)[0])
    finally:
        os.close(child)


def turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize(
    "options",
    [{}, {"add_generation_prompt": True}, {"return_assistant_tokens_mask": True}],
    ids=["whole", "prompt", "spans"],
)
def test_result_is_the_same_as_in_this_process(template: str, options: dict[str, bool]) -> None:
    if "strftime_now" in template:
        template = re.sub("%H %Z %c", "%Y %Z", template)
    process = TemplateProcess(template, TOKENS)
    for tools in (None, [TOOL]):
        here = render_jinja_template(
            [TURNS, TURNS[:1]], tools=tools, chat_template=template, **options, **TOKENS
        )
        assert process.render([TURNS, TURNS[:1]], tools, **options) == (here[0], here[1])
    if not seal_status().reason:
        assert process.status is not None
        assert (set(process.status.walls) <= set(WALLS), process.status.reason) == (True, "")


def test_messages_may_be_any_json() -> None:
    process = TemplateProcess("{{ messages[0].content[0].type ~ messages[0].at }}", {})

    assert process.render([[PARTS[0] | {"at": object()}]])[0] == ["image<object>"]


@pytest.mark.parametrize(("template", "reason"), FAILING.values(), ids=FAILING)
def test_error_is_told_in_the_words_of_the_template(template: str, reason: str) -> None:
    with pytest.raises(chat_templates.ChatTemplateError) as caught:
        chat_templates.ChatTemplate(tiny.tokenizer(template))

    assert reason in caught.value.message
    assert caught.value.message.startswith("The model's chat template fails: ")


@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY)
def test_greedy_template_fails_with_a_reason(template: str) -> None:
    process = TemplateProcess(template, {}, limits=TemplateLimits(seconds=2))

    with pytest.raises(TemplateFailure) as caught:
        process.render([TURNS])

    assert len(caught.value.reason) > 8


@pytest.fixture
def mixed() -> TemplateProcess:
    """Return a template that some conversations break."""
    text = (
        "{% set word = messages[0].content %}"
        "{% if word == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}"
        "{% if word == 'memory' %}{{ 'a' * 10 ** 10 }}{% endif %}"
        "{% if word == 'fail' %}{{ raise_exception('no.') }}{% endif %}{{ word }}"
    )
    return TemplateProcess(text, {}, limits=TemplateLimits(seconds=2))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("loop", "it took more than 2 seconds and was stopped"),
        ("memory", "it needs more memory than allowed"),
        ("fail", "no"),
    ],
)
def test_other_conversations_are_rendered_after_one_that_fails(
    mixed: TemplateProcess, word: str, reason: str
) -> None:
    with pytest.raises(TemplateFailure) as caught:
        mixed.render([turns("a"), turns(word), turns("b")])

    assert caught.value.reason == reason
    assert mixed.render([turns("a"), turns("b")])[0] == ["a", "b"]


def test_template_that_had_to_be_stopped_often_is_refused(mixed: TemplateProcess) -> None:
    mixed.limits = TemplateLimits(seconds=0.5)
    for _ in range(3):
        with pytest.raises(TemplateFailure, match="took more than"):
            mixed.render([turns("loop")])

    with pytest.raises(TemplateFailure, match="several times"):
        mixed.render([turns("a")])


def test_large_conversations_go_both_ways() -> None:
    process = TemplateProcess("{{ messages[0].content }}", {})
    texts = [f"{number}" * 2**21 for number in range(1, 9)]

    assert process.render([turns(text) for text in texts])[0] == texts


def test_process_that_was_killed_is_replaced(mixed: TemplateProcess) -> None:
    mixed.render([turns("a")])
    assert mixed.child
    pid = mixed.child.pid

    assert ended(pid, lambda: os.kill(pid, signal.SIGKILL))
    assert mixed.render([turns("a"), turns("b")])[0] == ["a", "b"]


def test_rendering_goes_on_after_the_thread_that_began_it(mixed: TemplateProcess) -> None:
    thread = threading.Thread(target=lambda: mixed.render([turns("a")]))
    thread.start()
    thread.join()

    assert mixed.render([turns("b")])[0] == ["b"]


def test_process_ends_with_its_object(mixed: TemplateProcess) -> None:
    process = TemplateProcess(mixed.template, {})
    process.render([turns("a")])
    assert process.child
    pids = [process.child.pid]

    def forget() -> None:
        nonlocal process
        process = mixed

    assert ended(pids[0], forget)


def test_fork_leaves_the_process_to_its_parent(mixed: TemplateProcess) -> None:
    mixed.render([turns("a")])
    child = mixed.child
    code = 1
    if (pid := os.fork()) == 0:
        try:
            code = int(mixed.render([turns("b")])[0] != ["b"])
            mixed.close()
        finally:
            os._exit(code)

    assert os.waitpid(pid, 0)[1] == 0
    assert mixed.render([turns("c")])[0] == ["c"]
    assert mixed.child is child


def test_process_that_was_started_early_is_used() -> None:
    start_early()
    start_early()
    first, second = TemplateProcess("1", {}), TemplateProcess("2", {})

    assert (first.render([TURNS])[0], second.render([TURNS])[0]) == (["1"], ["2"])


def test_few_processes_live_and_each_starts_again() -> None:
    many = [TemplateProcess(str(number), {}) for number in range(7)]
    first = many[0].render([TURNS])[0], many[0].child
    assert first[1]
    others = [one.render([TURNS])[0] for one in many[1:]]

    assert others == [[str(number)] for number in range(1, 7)]
    assert [one.child is not None for one in many] == [False] * 3 + [True] * 4
    assert not first[1].is_usable
    assert many[0].render([TURNS])[0] == first[0] == ["0"]
    assert many[3].child is None


def test_process_that_is_asked_is_not_ended() -> None:
    slow = "{% for a in range(999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}slow"
    busy, done = TemplateProcess(slow, {}), list[str]()
    busy.render([[]])
    thread = threading.Thread(target=lambda: done.extend(busy.render([[]])[0]))
    thread.start()
    for number in range(5):
        TemplateProcess(str(number), {}).render([[]])
    thread.join()

    assert done == ["slow"]


PARENT = """
import sys
from studio.training.data.template_process import TemplateProcess, start_early
process = TemplateProcess("{% for a in range(messages[0].n) %}{% for b in range(99999) %}"
    "{% endfor %}{% endfor %}", {})
process.render([[{"n": 0}]])
start_early()
print(process.child.pid, flush=True)
if sys.argv[1] == "busy":
    process.render([[{"n": 99999}]])
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_process_ends_with_a_killed_parent(state: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())

        assert ended(pid, parent.kill)
