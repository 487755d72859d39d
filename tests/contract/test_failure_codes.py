"""Every code that a failure can carry is in the one table, and every row of it can be met."""

import ast
from collections.abc import Iterator
from pathlib import Path

from studio import errors, failure_codes
from studio.errors import AccessError, StaleError, StudioError, TrainingError
from studio.failure_codes import FAILURE_CODES
from studio.services.runs import fixes

MODULES = sorted((Path(__file__).parents[2] / "studio").rglob("*.py"))

ANSWERS = (AccessError, StaleError)
"""What only a request is refused with."""

NAMED = {"TrainingError", "_rule", "super().__init__"}
"""Calls whose first argument is a code; of `super()`, in subclasses of TrainingError."""

KEYED = {"ExitCause", "Failed"}
"""Calls that name it `code`."""


def codes() -> set[str]:
    """Return each code that our source raises or tells a run's end by."""
    return {code for path in MODULES for code in told(ast.parse(path.read_text("utf-8")))}


def told(tree: ast.AST) -> Iterator[str]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        given = {one.arg: one.value for one in call.keywords}
        if name in NAMED and call.args and is_code(call.args[0]):
            yield ast.literal_eval(call.args[0])
        ends = name == "Alarm" and "ends_run" in given
        if (name in KEYED or ends) and isinstance(given.get("code"), ast.Constant):
            yield ast.literal_eval(given["code"])


def is_code(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and str(value.value).isidentifier()


def alarms() -> set[str]:
    """Return the codes that a run's guard can tell while it goes on."""
    return {
        ast.literal_eval(one.value)
        for path in MODULES
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Alarm"
        for one in call.keywords
        if one.arg == "code"
    }


def refusals() -> set[str]:
    """Return the codes of errors that may end a run before its process is made."""
    kinds = (kind for kind in vars(errors).values() if isinstance(kind, type))
    ends = (kind for kind in kinds if issubclass(kind, StudioError))
    return {kind.code for kind in ends if not issubclass(kind, ANSWERS)} - {StudioError.code}


def test_failure_table_lists_exactly_codes_in_use() -> None:
    assert issubclass(TrainingError, StudioError)
    assert codes() | refusals() == set(FAILURE_CODES)


def test_renamed_failure_codes_are_still_recognised() -> None:
    assert failure_codes.failure_code("model_missing") is FAILURE_CODES["model_not_found"]
    assert failure_codes.failure_code("never heard of") is FAILURE_CODES["crashed"]


def test_every_fix_belongs_to_existing_code() -> None:
    assert set(fixes._FIXES_BY_CODE) - set(FAILURE_CODES) - alarms() == set()


def test_every_failure_code_has_title_meaning_and_remedy() -> None:
    bare = [
        row.code
        for row in FAILURE_CODES.values()
        if not (row.title and row.meaning.endswith(".") and row.remedy.endswith("."))
    ]

    assert bare == []
