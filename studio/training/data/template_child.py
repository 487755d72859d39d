"""The process that renders with one chat template: seals itself, then answers line by line.

A chat template is a program, written by the publisher of the model. This process imports what
templates need, and neither torch nor the rest of transformers, so it starts quickly. The first line
that it reads holds the template and its limits. It writes one line on its seal before it runs any
of the template, and then one line for each conversation that it is asked to render.
"""

import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from studio.processes import child_limits
from studio.processes.parent_death import kill_on_parent_death
from studio.processes.seal import TEMPLATE, seal

LATE_MODULES = (
    *("encodings.unicode_escape", "html", "jinja2.constants", "jinja2.debug", "linecache"),
    *("pprint", "textwrap", "traceback"),
)
"""What templates load when they run, as a sealed process can import nothing more."""

Render = Callable[..., tuple[list[str], list[list[Any]]]]
"""`render_jinja_template` of transformers."""


def main(parent: int) -> None:
    """Render until standard input is closed, or the thread that started this process ends."""
    kill_on_parent_death(lambda: os.getppid() != parent)
    lines = sys.stdin.buffer
    render = load_renderer()
    prepare()
    first = lines.readline()
    if not first:
        return
    start = json.loads(first)
    child_limits.limit(_address_space_bytes() + start["memory_bytes"], start["cpu_seconds"])
    walls, reason = seal(TEMPLATE, start["walls"])
    _reply({"walls": walls, "reason": reason})
    for line in lines:
        _reply(_render(render, start, line))


def load_renderer() -> Render:
    """Import the renderer of transformers alone, which takes a tenth of the time of the package.

    The packages around it are entered without running them.
    """
    for name in ("transformers", "transformers.utils"):
        spec = importlib.util.find_spec(name)
        assert spec  # noqa: S101 -- installed with the studio
        sys.modules[name] = importlib.util.module_from_spec(spec)
    render: Render = import_module("transformers.utils.chat_template_utils").render_jinja_template
    return render


ERRORS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError),
    *(TemplateError, TypeError, ValueError),
)
"""Errors that compiling or rendering a template may raise."""


def prepare() -> None:
    """Load what templates need later, which a sealed process cannot."""
    for name in LATE_MODULES:
        import_module(name)
    time.localtime()  # Reads the time zone.


def describe(error: BaseException) -> str:
    """Return an error of a template in words that stand within a sentence."""
    if isinstance(error, MemoryError):
        return "it needs more memory than allowed"
    return str(error).rstrip(".") or type(error).__name__


def _render(render: Render, start: Mapping[str, Any], line: bytes) -> dict[str, Any]:
    number = None
    try:
        request = json.loads(line)
        number = request["id"]
        texts, spans = render(
            conversations=[request["messages"]],
            tools=request["tools"],
            chat_template=start["template"],
            **request["options"],
            **start["tokens"],
        )
    except ERRORS as error:
        return {"id": number, "error": describe(error)}
    return {"id": number, "text": texts[0], "spans": spans[0] if spans else []}


def _reply(answer: Mapping[str, Any]) -> None:
    unsent = json.dumps(answer).encode() + b"\n"
    while unsent:
        unsent = unsent[os.write(1, unsent) :]


def _address_space_bytes() -> int:
    if sys.platform != "linux":
        return 0
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
