import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_engine.graders.formula import EvaluationError, FormulaError, evaluate, parse

VARIABLES = {"a": 0.5, "b": 2.0, "c": -3.0}


def value(text: str, **variables: float) -> float:
    return evaluate(parse(text), variables or VARIABLES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3", 9.0),
        ("8 - 3 - 2", 3.0),
        ("8 / 4 / 2", 1.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2^2", -4.0),
        ("(-2)^2", 4.0),
        ("2^-1", 0.5),
        ("2^-1^2", 0.5),
        ("2*-3", -6.0),
        ("--2", 2.0),
        ("3 - -2", 5.0),
        (".5 + 1. + 1e-1", 1.6),
        ("0.8*a + 0.2*b", 0.8),
        ("min(a, b, c)", -3.0),
        ("max(a, b, c)", 2.0),
        ("min(b)", 2.0),
        ("abs(c)", 3.0),
        ("floor(0.7) + ceil(0.2)", 1.0),
        ("floor(-0.5)", -1.0),
        ("exp(0)", 1.0),
        ("sqrt(16)", 4.0),
        ("log(exp(2))", 2.0),
        ("\t1\n+ 1 ", 2.0),
        ("007 + 1e0", 8.0),
        ("1 - 2^2^-1 * 0", 1.0),
        ("1 / 2 - -1 ^ 2", 1.5),
    ],
)
def test_a_formula_has_its_usual_value(text: str, expected: float) -> None:
    assert value(text) == pytest.approx(expected, abs=1e-15)


def test_pythons_keywords_are_ordinary_names() -> None:
    assert value("if + lambda * None", **{"if": 1.0, "lambda": 2.0, "None": 3.0}) == 7.0


def test_a_formula_lists_its_variables() -> None:
    assert parse("0.8*a + min(b, a) - exp(1)").variables == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "ends too early, at character 1"),
        ("a +", "ends too early, at character 4"),
        ("a + * b", "'*' at character 5"),
        ("a b", "'b' at character 3"),
        ("2a", "'a' at character 2"),
        ("a ** 2", "'*' at character 4"),
        ("(a", "( at character 1 is not closed"),
        ("a)", "')' at character 2"),
        ("min(a", "( at character 4 is not closed"),
        ("min()", "')' at character 5"),
        ("abs(a, b)", "abs at character 1 takes 1 argument, not 2"),
        ("sin(a)", "unknown function sin at character 1; known: min, max"),
        ("1 + max", "function max at character 5 needs arguments"),
        ("a; b", "';' at character 2"),
        ("  $", "'$' at character 3"),
        ("a.b", "'.' at character 2"),
        ("1e999", "number at character 1 is too large"),
        ("+a", "'+' at character 1"),
        ("(a, b)", "',' at character 3"),
        ("a(b)", "unknown function a at character 1"),
        ("2(b)", "'(' at character 2"),
        ("min(a)(b)", "'(' at character 7"),
        ("a if b", "'if' at character 3"),
        ("a < b", "'<' at character 3"),
        ("a = b", "'=' at character 3"),
        ("1_000", "'_000' at character 2"),
        ("a[0]", "'[' at character 2"),
        ("min(*a)", "'*' at character 5"),
        ("é", "'é' at character 1"),
        ("-" * 60 + "a", "nested deeper than 50 at character 52"),
        ("a" + "^a" * 60, "nested deeper than 50 at character 103"),
        ("(" * 60 + "a" + ")" * 60, "nested deeper than 50 at character 52"),
        ("1+" * 3000 + "1", "at most 4096 characters"),
    ],
)
def test_an_invalid_formula_is_refused_with_the_position(text: str, complaint: str) -> None:
    with pytest.raises(FormulaError) as caught:
        parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1 / (a - a)", "1 / 0 has no finite value"),
        ("log(0)", "log(0) has no"),
        ("sqrt(c)", "sqrt(-3) has no"),
        ("exp(1000)", "exp(1000) has no"),
        ("1 / (1e308 * 10)", "1e+308 * 10 has no"),
        ("c ^ a", "-3 ^ 0.5 has no"),
        ("0 ^ -1", "0 ^ -1 has no"),
        ("9 ^ 9 ^ 9", "9 ^ 3.8742e+08 has no"),
        ("10 ^ 16", "the value 1e+16 is beyond 1e+15"),
    ],
)
def test_a_formula_without_a_value_for_a_reward_says_why(text: str, complaint: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        value(text)
    assert complaint in str(caught.value)


def test_a_long_chain_needs_no_deep_stack() -> None:
    assert value("+".join(["a"] * 2000), a=0.5) == 1000.0


NUMBERS = st.floats(0, 100, allow_nan=False).map(lambda x: repr(round(x, 3)))
TERMS = st.recursive(
    NUMBERS | st.sampled_from(sorted(VARIABLES)),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/^"), inner).map(" ".join)
        | inner.map(lambda x: f"({x})")
        | inner.map(lambda x: f"-{x}")
        | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda x: f"{x[0]}({x[1]}, {x[2]})")
        | st.tuples(st.sampled_from(["abs", "floor", "ceil", "exp", "sqrt"]), inner).map(
            lambda x: f"{x[0]}({x[1]})"
        )
    ),
    max_leaves=12,
)


@given(TERMS)
def test_a_formula_agrees_with_pythons_arithmetic(text: str) -> None:
    names = {name: getattr(math, name) for name in ("floor", "ceil", "exp", "sqrt")}
    try:
        ours = value(text)
    except EvaluationError:
        return
    theirs = eval(
        text.replace("^", "**"),
        {"__builtins__": {}},
        names | VARIABLES | {"min": min, "max": max, "abs": abs},
    )
    assert ours == pytest.approx(theirs, rel=1e-12)


@given(st.text() | st.text(alphabet="0123456789.eE+-*/^(), abminx"))
@example("-" * 4000)
@example("2^" * 2000 + "2")
@example("min(" * 1000)
def test_any_text_has_a_finite_value_or_one_of_two_errors(text: str) -> None:
    try:
        formula = parse(text)
        assert math.isfinite(evaluate(formula, dict.fromkeys(formula.variables, 2.0)))
    except (FormulaError, EvaluationError):
        return
