"""The process that runs the program of one Python grader: seals itself, then answers line by line.

It is started as `python -I -S` and imports nothing but the standard library. The first line that it
reads holds the program and its limits. It writes one line on its seal before it runs any of the
program, one line once that is loaded, and then one line for each answer that it is asked to grade.

Whatever the program changes in this process, it can only falsify its own scores.
"""

import io
import json
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from types import TracebackType
from typing import Any

from studio.processes import child_limits, seal
from studio.processes.parent_death import kill_on_parent_death

FILE_NAME = "<grader>"
"""What tracebacks call the program."""
MAX_DETAILS = 300
"""The longest error text, in characters."""

BASE_MODULES = (
    *("collections.abc", "datetime", "difflib", "encodings.idna", "functools", "itertools"),
    *("json", "linecache", "math", "random", "re", "statistics", "string", "_strptime"),
    *("traceback", "typing", "unicodedata", "warnings"),
)
"""Always loaded before the process is sealed: what most graders use, or Python needs later."""


class _Discard(io.TextIOBase):
    """Where the program prints to: its standard output belongs to the answers."""

    def write(self, text: str) -> int:
        return len(text)


class _RefusingFinder:
    """Says why a module cannot be imported any more."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        raise ModuleNotFoundError(
            f"{name} is not available to graders: they can import what computes on text and "
            "numbers in Python's standard library",
            name=name,
        )


def main() -> None:
    """Run a program until standard input is closed."""
    lines = sys.stdin.buffer
    start = json.loads(lines.readline())
    kill_on_parent_death(lambda: os.getppid() != start["parent"])
    child_limits.limit(start["memory_bytes"], start["cpu_seconds"])
    _import_modules(
        [*BASE_MODULES, *(name for name in start["modules"] if name in start["source"])]
    )
    walls, reason = seal.seal(seal.GRADER, start["walls"])
    _close_imports()
    _reply({"walls": walls, "reason": reason})
    if reason and start["must_seal"]:
        return
    grade = _load(start["source"])
    for line in lines:
        request = json.loads(line)
        _reply({"id": request["id"], **_grade(grade, request)})


def _import_modules(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError):
            import_module(name)


def _close_imports() -> None:
    sys.path.clear()
    sys.meta_path[:] = [
        _RefusingFinder if finder is PathFinder else finder for finder in sys.meta_path
    ]
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), _Discard(), _Discard()


def _load(source: str) -> Any:  # noqa: ANN401 -- what the program calls grade
    """Run the program and return its function, None if it has none; say which."""
    space: dict[str, Any] = {"__name__": "grader"}
    try:
        exec(compile(source, FILE_NAME, "exec"), space)  # noqa: S102 -- what this process is for
        found = space.get("grade")
        if not callable(found):
            raise NameError("the program defines no function grade(sample, item)")  # noqa: TRY004, TRY301 -- reported like all errors
    except BaseException as error:  # noqa: BLE001 -- whatever a program raises
        _reply({"error": _describe(error)})
        return None
    _reply({"ready": True})
    return found


def _grade(grade: Any, request: dict[str, Any]) -> dict[str, object]:  # noqa: ANN401 -- a program's function
    try:
        return {"reward": _to_number(grade(request["sample"], request["item"]))}
    except BaseException as error:  # noqa: BLE001 -- whatever a program raises
        return {"error": _describe(error)}


def _to_number(value: object) -> float:
    """Return a score as a number; true is 1 and false is 0.

    Raises:
        TypeError: it is no number.
        ValueError: it is not finite.

    """
    if not isinstance(value, int | float):
        kind = "nothing" if value is None else f"a value of type {type(value).__name__}"
        raise TypeError(f"grade returned {kind} instead of a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"grade returned {number} instead of a finite number")
    return number


def _describe(error: BaseException) -> str:
    """Return the type and text of an error, and its last line in the program."""
    try:
        text = f"{type(error).__name__}: {error}"[:MAX_DETAILS]
    except BaseException:  # noqa: BLE001 -- its text is a program, too
        text = "an error without a readable text"
    number = _line_in_program(error.__traceback__)
    return f"{text} (line {number})" if number else text


def _line_in_program(traceback: TracebackType | None) -> int | None:
    number = None
    while traceback:
        if traceback.tb_frame.f_code.co_filename == FILE_NAME:
            number = traceback.tb_lineno
        traceback = traceback.tb_next
    return number


def _reply(answer: dict[str, Any]) -> None:
    unsent = json.dumps(answer).encode() + b"\n"
    while unsent:
        unsent = unsent[os.write(1, unsent) :]
