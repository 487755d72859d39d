"""The chat templates that a recipe can choose for a model that has none."""

_CHATML = (
    "{{ BOS }}{% if tools %}{{ '<|im_start|>system\\n# Tools\\n\\nCall a function by its name and "
    "arguments as JSON in <tool_call></tool_call>. The functions:\\n<tools>' }}"
    "{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}{{ '\\n</tools>END\\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}"
    "{% for call in message.tool_calls or () %}"
    "{{ '\\n' if message.content or not loop.first else '' }}{{ '<tool_call>\\n' }}"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{ '\\n</tool_call>' }}{% endfor %}{{ 'END' }}{% endgeneration %}"
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
_NONE = (
    "{% for message in messages %}"
    "{% if loop.last and message.role == 'assistant' %}"
    "{{ '\\n' }}{% generation %}{{ message.content }}{{ 'END' }}{% endgeneration %}"
    "{% else %}{{ '' if loop.first else '\\n' }}{{ message.content }}{% endif %}"
    "{% endfor %}"
)
"""A prompt and its answer, to count and show them; runs tokenise them apart."""
_TEMPLATES = {"chatml": _CHATML, "plain": _PLAIN, "none": _NONE}
IM_END = "<|im_end|>"
"""What ends a turn in ChatML, if the tokenizer has it; else its end-of-text token does."""


def template_text(choice: str, opening: str) -> str:
    """Return a template, whose text begins with the value of a Jinja expression."""
    return _TEMPLATES[choice].replace("BOS", opening).replace("'END'", "eos_token")
