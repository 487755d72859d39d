"""Formulas of `multi`: numbers, names of graders, `+ - * / ^`, and a few functions.

Python's parser reads a formula, and nothing of it is run: it is computed on floats alone, so that
no number grows beyond a double, and no formula takes longer than its length.
"""

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

MAX_LENGTH = 1000
"""Characters of a formula."""
_MAX_DEPTH = 50
"""Brackets within brackets; Python's parser allows 200."""

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.Pow: math.pow,
    }
)
_FUNCTIONS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "abs": abs,
        "floor": math.floor,
        "ceil": math.ceil,
        "exp": math.exp,
        "sqrt": math.sqrt,
        "log": math.log,
    }
)
"""Functions of one number; `log` is the natural logarithm."""
_FOLDS: Mapping[str, Callable[[list[float]], float]] = MappingProxyType({"min": min, "max": max})
"""Functions of any count of numbers."""

FUNCTION_NAMES = frozenset({*_FUNCTIONS, *_FOLDS})


class Formula:
    """A formula that has been read."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        """Read a formula on the scores of the named graders.

        Raises:
            ValueError: it cannot be read.

        """
        self._root = _parse(text)
        self.names = frozenset(_check(self._root, names, 0))

    def compute(self, scores: Mapping[str, float]) -> float:
        """Return the value for the scores of the graders.

        Raises:
            ValueError: it has no finite value.

        """
        try:
            return _compute(self._root, scores)
        except (ArithmeticError, ValueError) as error:
            raise ValueError(f"The formula has no value here: {error}.") from error


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"The formula is longer than {MAX_LENGTH} characters.")
    try:
        return ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("The formula cannot be read: check its brackets and operators.") from error


def _check(node: ast.expr, names: Collection[str], depth: int) -> set[str]:
    """Return the names that a formula uses.

    Raises:
        ValueError: there is something else than names, numbers, operators and functions in it.

    """
    if depth > _MAX_DEPTH:
        raise ValueError("The formula has too many brackets or operators within each other.")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            _check_size(number)
            return set()
        case ast.Name(id=name):
            _check_name(name, names)
            return {name}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _check(operand, names, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _check(left, names, depth + 1) | _check(right, names, depth + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTION_NAMES:
            if len(args) != 1 and not (name in _FOLDS and args):
                raise ValueError(f"The function {name} takes {_arity(name)}.")
            return {used for arg in args for used in _check(arg, names, depth + 1)}
    raise ValueError(
        "A formula has numbers, names of graders, + - * / ^, brackets and the functions "
        f"{', '.join(sorted(FUNCTION_NAMES))}, and nothing else."
    )


def _arity(name: str) -> str:
    return "one or more numbers" if name in _FOLDS else "one number"


def _check_name(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise ValueError(f"There is no grader {name[:40]}; there is {', '.join(sorted(names))}.")


def _check_size(number: float) -> None:
    try:
        is_finite = math.isfinite(number)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ValueError("The formula has a number that is too large.")


def _compute(node: ast.expr, scores: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return float(scores[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand, scores)
        case ast.UnaryOp(operand=operand):
            return _compute(operand, scores)
        case ast.BinOp(left=left, op=op, right=right):
            value = _OPERATORS[type(op)](_compute(left, scores), _compute(right, scores))
            if not math.isfinite(value):
                raise OverflowError("a number becomes too large")
            return value
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_compute(arg, scores) for arg in args]
            return _FOLDS[name](values) if name in _FOLDS else float(_FUNCTIONS[name](values[0]))
    raise AssertionError(ast.dump(node))  # `_check` allows nothing else.
