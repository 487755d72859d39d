"""Answers that call functions, in the forms that chat templates write calls in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # has no types
import pytest
from transformers import PreTrainedTokenizerBase

from studio.errors import InvalidError, TrainingError
from studio.protocols.inference_service import EXAMPLE_CALL, GenerationRequest, ToolCall
from studio.protocols.tokenizer_service import PromptTokens, TokenizerRequest
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.tool_calls import CallFormat, CallReader, find_format
from studio.training.data.token_preview import tokenise_answer, tokenise_prompt
from tests.support.generated_answers import answer
from tests.training import tiny
from tests.training.models.test_decoding import Loaded

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

HEAD = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
TURNS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>' }}"
    "{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CALLS = {
    "hermes": '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}",
    "thinking": '{{ \'<think>\\n\\n</think>\\n\\n<tool_call>{"name": "\' + call.function.name }}'
    "{{ '\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}</tool_call>' }}",
    "llama": '{{ \'{"name": "\' + call.function.name + \'", "parameters": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}' }}",
    "mistral": '{{ \'[TOOL_CALLS][{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ ', \"id\": \"' + call.id + '\"}]' }}",
    "bare": "{{ call.function.name + '\\n' }}{{ call.function.arguments | tojson }}",
}
TEMPLATES = {name: HEAD + TURNS.replace("CALL", call) for name, call in CALLS.items()}
PLAIN = TURNS.replace("CALL", "")
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = {"weather": CITY, "now": {"additionalProperties": False}}
DEFINED = [
    {"type": "function", "function": {"name": name, "description": "…", "parameters": parameters}}
    for name, parameters in TOOLS.items()
]
QUESTION = {"role": "user", "content": "What is the weather in Rome?"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """Load a model whose tokenizer has marks of calls as tokens: a special one, and plain ones."""
    folder = tiny.write_model(tmp_path_factory.mktemp("tools") / "one", tiny.llama())
    with ModelCache().model_for(GenerationRequest(model=str(folder), ids=[], stops=[])) as pair:
        pair[1].add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
        pair[1].add_tokens(["<tool_call>", "</tool_call>"])
        yield pair


def rendered(template: str, tokenizer: PreTrainedTokenizerBase) -> PromptTokens:
    """Render the example of a call as the web process has it rendered."""
    name, arguments = EXAMPLE_CALL
    call = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "studio001", "type": "function", "function": call}]
    example = {"role": "assistant", "content": "", "tool_calls": calls}
    row = {"messages": [QUESTION, example], "tools": DEFINED}
    tokenizer.chat_template = template
    return tokenise_answer(TokenizerRequest(kind="answer", model="m", row=row), tokenizer)


def asked(template: str, tokenizer: PreTrainedTokenizerBase, **changes: Any) -> GenerationRequest:  # noqa: ANN401 -- any field
    prompt = rendered(template, tokenizer)
    start = prompt.places[0]
    plain = GenerationRequest(
        model="",
        ids=prompt.ids[:start][-40:],
        stops=[tokenizer.eos_token_id],
        most=80,
        tools=TOOLS,
        call_example=prompt.ids[start:],
    )
    return plain.model_copy(update=changes)


@pytest.mark.parametrize("name", ["hermes", "thinking", "llama", "mistral"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"seed": 1}, {"seed": 2}])
def test_untrained_model_calls_a_function(
    loaded: Loaded, name: str, sampling: dict[str, Any]
) -> None:
    found = answer(asked(TEMPLATES[name], loaded[1], must_call=True, **sampling), *loaded)

    (call,) = found.end.calls
    assert (found.text, found.end.reason) == ("", "stop")
    jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])


def test_function_that_is_chosen_is_called(loaded: Loaded) -> None:
    request = asked(TEMPLATES["hermes"], loaded[1], must_call=True, tools={"weather": CITY}, seed=3)

    assert [call.name for call in answer(request, *loaded).end.calls] == ["weather"]


def test_template_whose_calls_begin_with_the_name_is_rejected(loaded: Loaded) -> None:
    with pytest.raises(InvalidError, match="in a form that cannot be read"):
        find_format(asked(TEMPLATES["bare"], loaded[1]), loaded[1])


def test_template_without_tools_is_rejected(loaded: Loaded) -> None:
    with pytest.raises(TrainingError, match="does not render tool definitions"):
        rendered(PLAIN, loaded[1])


def test_run_that_has_learnt_to_call_calls_by_itself(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    (model / "chat_template.jinja").write_text(TEMPLATES["hermes"], "utf-8")
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    calls = [{"id": "a", "type": "function", "function": call}]
    rows: list[tiny.Row] = [
        {
            "messages": [
                {"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": "I look.", "tool_calls": calls},
            ],
            "tools": [],
        },
        {
            "messages": [
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "content": "Hello."},
            ]
        },
    ]
    run = tiny.train(
        tmp_path / "run",
        model,
        rows * 16,
        optimisation__max_steps=100,
        optimisation__learning_rate=5e-3,
        data__validation_share=0.1,
    )
    ends = {}
    for words in ("Rain?", "Hi."):
        question = [{"role": "user", "content": words}]
        request = TokenizerRequest(kind="prompt", model="m", row={"messages": question})
        plain = GenerationRequest(model=str(run.artifacts), ids=[], stops=[])
        with ModelCache().model_for(plain) as (trained, tokenizer):
            prompt = tokenise_prompt(request, tokenizer)
            example = asked(TEMPLATES["hermes"], tokenizer, temperature=0)
            told = example.model_copy(update={"ids": prompt.ids, "stops": prompt.stops})
            ends[words] = answer(told, trained, tokenizer)

    assert (ends["Hi."].text, ends["Hi."].end.calls) == ("Hello.", [])
    assert ends["Rain?"].text.strip() == "I look."
    assert ends["Rain?"].end.calls == [WEATHER]


FORM = CallFormat('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WEATHER = ToolCall(name="weather", arguments='{"city": "Rome"}')


@pytest.mark.parametrize(
    ("written", "text", "calls"),
    [
        ("It rains.", "It rains.", []),
        (CALL, "", [WEATHER]),
        (f"I look.\n{CALL}", "I look.\n", [WEATHER]),
        (f"{CALL}\n{CALL}", "", [WEATHER, WEATHER]),
        ('<tool_call>{"name":"now","arguments":{}}', "", [ToolCall(name="now", arguments="{}")]),
        ('<tool_call>\n{"name": "weather", "arg', '<tool_call>\n{"name": "weather", "arg', []),
        (f"{CALL}<tool_call>", f"{CALL}<tool_call>", []),
        (
            '<tool_call>{"name":"now","arguments":[]}',
            '<tool_call>{"name":"now","arguments":[]}',
            [],
        ),
        ("a < b, <tool", "a < b, <tool", []),
    ],
)
def test_calls_are_told_from_text(written: str, text: str, calls: list[ToolCall]) -> None:
    """One letter is a token."""
    reader = CallReader(FORM, lambda ids: "".join(map(chr, ids)))
    released = [piece for letter in written for piece in reader.add((ord(letter), None))]

    found, rest = reader.finish()

    assert "".join(chr(token) for token, _likelihood in [*released, *rest]) == text
    assert found == calls
