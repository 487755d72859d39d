"""Formulas compute what they say, or say why they cannot."""

import math

import pytest

from studio.graders.formulas import Formula

SCORES = {"a": 0.5, "b": 0.25, "long_name": 1.0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", 0.5),
        ("1", 1.0),
        ("a + b * 2", 1.0),
        ("(a + b) * 2", 1.5),
        ("0.7 * a + 0.3 * long_name", 0.65),
        ("a / b", 2.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2 ^ 2", -4.0),
        ("2 ^ -1", 0.5),
        ("+a - -b", 0.75),
        ("min(a, b, 1)", 0.25),
        ("max(a)", 0.5),
        ("abs(b - a)", 0.25),
        ("floor(a) + ceil(a)", 1.0),
        ("sqrt(b)", 0.5),
        ("exp(0) + log(1)", 1.0),
        (" a\n", 0.5),
    ],
)
def test_formula_has_value(text: str, expected: float) -> None:
    assert math.isclose(Formula(text, SCORES).compute(SCORES), expected)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a +", "a b", "(a", "a)", "a = 1", "a; b", "a, b", "[a]", "'a'", "True", "1j", "a.b"),
        *("a[0]", "a if b else a", "a and b", "a < b", "not a", "~a", "a // b", "a % b", "a @ b"),
        *("f(a)", "min()", "abs(a, b)", "min(a, key=b)", "min(*a)", "__import__('os')", "print(a)"),
        *("lambda: a", "(a := 1)", "c", "A", "min", "9" * 999, "1e999", "a" * 1001, "f'{a}'"),
        *("-" * 900 + "a", "(" * 900 + "a" + ")" * 900, "a" + "+a" * 400, "...", "None", "yield a"),
    ],
)
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(A|The|There)\b.*\.$"):
        Formula(text, SCORES)


def test_unknown_name_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no grader c; there is a, b, long_name"):
        Formula("a + c", SCORES)


@pytest.mark.parametrize(
    "text",
    [
        *("1 / (a - a)", "log(0)", "log(-1)", "sqrt(-1)", "(-1) ^ 0.5", "0 ^ -1", "exp(1000)"),
        *("9 ^ 9 ^ 9", "1e308 * 10", "1e308 * 10 - 1e308 * 10", "min(1, 1e308 * 10)"),
    ],
)
def test_formula_without_value_is_an_error(text: str) -> None:
    formula = Formula(text, SCORES)

    with pytest.raises(ValueError, match="has no value here"):
        formula.compute(SCORES)
