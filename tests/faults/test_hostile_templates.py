"""Chat templates as an attacker writes them: each ends in a readable error, and the desk lives on.

SECURITY: what a template can reach is bounded by its sandbox, what it can use up by its child.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from studio.errors import InvalidError
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.services.models import service_clients
from studio.settings import Settings
from studio.worker.socket_services import SocketService
from tests.support import tokenizer_services

pytestmark = pytest.mark.faults

ROW = {
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
    ]
}
REACH = "__globals__['os'].popen('touch {mark}').read()"

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "lipsum": "{{ lipsum." + REACH + " }}",
    "cycler": "{{ cycler.__init__." + REACH + " }}",
    "joiner": "{{ joiner.__init__." + REACH + " }}",
    "namespace": "{{ namespace.__init__." + REACH + " }}",
    "exception": "{{ raise_exception." + REACH + " }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': messages}) }}",
    "attr": "{{ messages | attr('__class__') | attr('__mro__') }}",
    "map": "{{ [messages] | map(attribute='__class__.__mro__') | list }}",
    "self": "{{ self.__init__." + REACH + " }}",
    "import": "{% import '/etc/passwd' as secret %}{{ secret }}",
    "include": "{% include '/etc/passwd' %}",
}
GREEDY = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "times": "{{ 'a' * 10 ** 10 }}",
    "center": "{{ 'a'.center(10 ** 10) }}",
    "replace": "{% set a = 'a' * 10 ** 5 %}{{ a.replace('a', a).replace('a', a) }}",
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "power": "{{ 9 ** (9 ** 9) }}",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module", autouse=True)
def desked(home: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketService]:
    good = tokenizer_services.write_model(tmp_path_factory.mktemp("models") / "good")
    with tokenizer_services.run_tokenizer_service(home) as here:
        service_clients.tokenize_row(home, asked(good))
        process = here.child
        yield here
        service_clients.tokenize_row(home, asked(good))
        assert here.child is process, "It was started anew."


ORDINARY = {
    "date": ("{{ strftime_now('%Y') }}", str(datetime.now().astimezone().year)),
    "time": ("{{ strftime_now('%H %Z %c')[:2] | length }}", "2"),
    "lorem": ("{{ lipsum(1, false)[-1] }}", "."),
    "striptags": ("{{ '<b>&amp;</b>' | striptags }}", "&"),
    "wordwrap": ("{{ 'a b' | wordwrap(1) | replace('\n', '-') }}", "a-b"),
    "pprint": ("{{ {'a': 1} | pprint }}", "{'a': 1}"),
    "tojson": ("{{ messages[0] | tojson }}", '{"role"'),
    "escape": ("{{ 'a\\u0041\\n' }}", "aA"),
    "random": ("{{ [1, 1] | random }}", "1"),
    "sort": (
        "{{ messages | sort(attribute='role') | map(attribute='role') | first }}",
        "assistant",
    ),
    "urlencode": ("{{ 'a b' | urlencode }}", "a%20b"),
}
"""What templates use, some of which loads a module or a file the first time, and what it gives."""
FAILING = {
    "raised": ("{{ raise_exception('No system turn, please') }}", "No system turn, please"),
    "zero": ("{{ 1 / 0 }}", "division by zero"),
    "undefined": ("{{ nothing.here.there }}", "'nothing' is undefined"),
    "syntax": ("{% if %}", "Expected an expression"),
}


def asked(model: Path) -> TokenizerRequest:
    return TokenizerRequest(kind="tokens", model=str(model), row=ROW)


@pytest.mark.smoke
@pytest.mark.parametrize("template", ESCAPES.values(), ids=ESCAPES)
def test_templates_cannot_escape_sandbox(home: Settings, tmp_path: Path, template: str) -> None:
    mark = tmp_path / "mark"
    model = tokenizer_services.write_model(
        tmp_path / "model", template.replace("{mark}", str(mark))
    )

    try:
        found = service_clients.tokenize_row(home, asked(model))
        told = "".join(one.text for one in found.tokens)
    except InvalidError as error:
        told = error.message

    # Undefined, as the sandbox has it, or a refusal; never what it was after.
    assert [word for word in ("root:", "subclasses", "<class") if word in told] == []
    assert not mark.exists()


@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY)
def test_resource_hungry_template_fails_with_clear_error(
    home: Settings, tmp_path: Path, template: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        service_clients.tokenize_row(
            home, asked(tokenizer_services.write_model(tmp_path / "model", template))
        )

    assert (caught.value.code, caught.value.message[-1]) == ("chat_template_refused", ".")


@pytest.mark.parametrize(("template", "expected"), ORDINARY.values(), ids=ORDINARY)
def test_sealed_child_renders_what_templates_use(
    home: Settings, tmp_path: Path, template: str, expected: str
) -> None:
    text = template + tokenizer_services.CHATML
    model = tokenizer_services.write_model(tmp_path / "model", text)

    for _ in range(2):  # In the child that loads the tokenizer, then in one that has it.
        found = service_clients.tokenize_row(home, asked(model))
        assert "".join(token.text for token in found.tokens).startswith(expected)


@pytest.mark.parametrize(("template", "reason"), FAILING.values(), ids=FAILING)
def test_sealed_child_tells_why_a_template_fails(
    home: Settings, tmp_path: Path, template: str, reason: str
) -> None:
    model = tokenizer_services.write_model(tmp_path / "model", template)
    for _ in range(2):
        with pytest.raises(InvalidError, match="The model's chat template fails") as caught:
            service_clients.tokenize_row(home, asked(model))
        assert reason in caught.value.message
