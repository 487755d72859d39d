"""What holds for any formula, template and grader."""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from studio.errors import InvalidError
from studio.graders.formulas import Formula
from studio.graders.grades import GradeError
from studio.graders.grading import Grading
from studio.graders.schema import parse_grader
from studio.graders.templates import Sample, check_template, fill
from studio.graders.text_similarity import METRICS

NAMES = {"a": 0.5, "b": 2.0, "zero": 0.0}
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": math.pow,
}


class Expected(NamedTuple):
    """A formula, and its value; None if it has none."""

    text: str
    value: float | None


def apply(text: str, function: Callable[..., float], *inner: Expected) -> Expected:
    values = [one.value for one in inner]
    if None in values:
        return Expected(text, None)
    try:
        value = float(function(*values))
    except (ArithmeticError, ValueError):
        return Expected(text, None)
    return Expected(text, value if math.isfinite(value) else None)


def apply_operator(parts: tuple[Expected, str, Expected]) -> Expected:
    left, sign, right = parts
    return apply(f"({left.text}{sign}{right.text})", OPERATORS[sign], left, right)


def apply_function(parts: tuple[str, Expected]) -> Expected:
    name, inner = parts
    return apply(f"{name}({inner.text})", FUNCTIONS[name], inner)


def apply_max(inner: list[Expected]) -> Expected:
    return apply(f"max({','.join(one.text for one in inner)})", lambda *values: max(values), *inner)


FORMULAS = st.recursive(
    st.one_of(
        st.sampled_from([Expected(name, value) for name, value in NAMES.items()]),
        st.integers(0, 9).map(lambda number: Expected(str(number), float(number))),
        st.just(Expected("0.25", 0.25)),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/^"), inner).map(apply_operator),
        inner.map(lambda one: apply(f"(-{one.text})", operator.neg, one)),
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), inner).map(apply_function),
        st.lists(inner, min_size=1, max_size=3).map(apply_max),
    ),
    max_leaves=12,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


T = TypeVar("T")


def attempt(work: Callable[[], T]) -> T | Exception:
    """Return what is made, or the refusal; anything else is an error of the studio."""
    try:
        return work()
    except (ValueError, GradeError, InvalidError) as error:
        return error


@given(FORMULAS)
def test_formula_has_its_value_or_none(expected: Expected) -> None:
    formula = Formula(expected.text, NAMES)
    value = attempt(lambda: formula.compute(NAMES))

    if expected.value is None:
        assert "has no value here" in str(value)
    else:
        assert value == expected.value
    assert formula.names <= NAMES.keys()


@given(st.text("ab01.+-*/^()[]'\"{},_ =<>:é\n\0", max_size=60))
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    formula = attempt(lambda: Formula(text, NAMES))
    if isinstance(formula, Formula):
        value = attempt(lambda: formula.compute(NAMES))
        assert "has no value here" in str(value) or math.isfinite(float(str(value)))
    else:
        assert isinstance(formula, ValueError)


@given(st.text("{} item.samplejson_text[0]'\"-\n", max_size=60), st.text(max_size=20), JSON)
def test_any_template_is_filled_or_refused(template: str, answer: str, item: Any) -> None:  # noqa: ANN401 -- any JSON
    if not isinstance(attempt(lambda: check_template(template)), Exception):
        text = attempt(lambda: fill(template, Sample(answer), item))
        assert isinstance(text, str | GradeError)


@given(
    JSON | st.fixed_dictionaries({"type": st.sampled_from(["multi", "python"]), "graders": JSON})
)
def test_any_json_is_a_grader_or_refused(data: Any) -> None:  # noqa: ANN401 -- any JSON
    refusal = attempt(lambda: parse_grader(data))

    assert isinstance(refusal, InvalidError)
    assert refusal.param.startswith("grader")


@given(st.sampled_from(sorted(METRICS)), st.text(max_size=30), st.text(max_size=30))
def test_similarity_is_between_0_and_1_and_largest_to_itself(
    metric: str, text: str, other: str
) -> None:
    data = {
        "type": "text_similarity",
        "name": "n",
        "evaluation_metric": metric,
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.text }}",
    }
    with Grading(parse_grader(data), "off") as grading:
        reward = grading.grade(Sample(text), {"text": other}).reward
        same = grading.grade(Sample(text), {"text": text}).reward

    assert reward is not None
    assert same is not None
    assert 0 <= reward <= 1
    assert same >= reward - 1e-9
