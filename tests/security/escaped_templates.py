"""The tokenizer service without Jinja's sandbox, so that templates are programs in Python.

Started as `python -m tests.security.escaped_templates LISTENER LIFELINE WALL ...`.
"""

import sys
from importlib import import_module

from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from tests.security.grader_attacks import MODULES


def _is_safe(*_: object) -> bool:
    return True


TEMPLATE = (
    "{% set builtins = lipsum.__globals__['__builtins__'] %}"
    "{% set space = {} %}"
    "{% if messages[0].content.startswith('#') %}"
    "{% set _ = builtins['exec'](messages[0].content, space) %}"
    "{{ '<<' ~ space.result ~ '>>' }}"
    "{% endif %}"
)
"""Runs the first turn if it is a program, and begins with what that left in `result`."""


def remove_sandbox() -> None:
    for environment in (SandboxedEnvironment, ImmutableSandboxedEnvironment):
        for name in ("is_safe_attribute", "is_safe_callable"):
            setattr(environment, name, _is_safe)


if __name__ == "__main__":
    for module in MODULES:
        import_module(module)
    remove_sandbox()
    from studio.runner.tokenizer import main

    listener, lifeline, *walls = sys.argv[1:]
    sys.exit(main.main(int(listener), int(lifeline), walls))
