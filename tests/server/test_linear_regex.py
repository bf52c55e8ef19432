"""Expressions of strangers match what Python's match, and stop nobody."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress

import pytest

from server.linear_regex import compiled


def test_random_expressions_match_as_pythons_do() -> None:
    chance = random.Random(11)

    def expression(depth: int) -> str:
        if depth == 0:
            return chance.choice(["a", "b", ".", "[ab]", "[^a]", "c"])
        parts = [expression(depth - 1) for _ in range(chance.randint(1, 3))]
        whole = chance.choice(["", "|"]).join(parts)
        return f"({whole}){chance.choice(['', '*', '+', '?', '{2}', '{1,2}', '{0,3}', '{2,}'])}"

    for _ in range(300):
        text_of = expression(chance.randint(1, 2))
        linear, known = compiled(text_of), re.compile(text_of)
        for _ in range(20):
            text = "".join(chance.choices("abc", k=chance.randint(0, 8)))
            found = linear.fullmatch(text) is not None
            assert found == (known.fullmatch(text) is not None), (text_of, text)


@pytest.mark.parametrize(
    "expression",
    ["(", "a)", "[a", "*", "a**", "a{3,2}", "a{1001}", "\\", r"\1", "(?=a)", "(?<=a)", "[b-a]"],
)
def test_what_re2_does_not_take_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compiled(expression)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        compiled(r"\pL{1000}")


@pytest.mark.parametrize(
    "part", [r"\pL", r"(?i)\PN", "x{1000}", "x{0,9}", "x?", "(x{1,31}){1,31}", r"(?:\pL{100})*"]
)
@pytest.mark.parametrize("size", [40, 5_000, 32_767])
def test_what_takes_long_to_make_is_refused_before_it_is_made(part: str, size: int) -> None:
    """No other thread of the process runs meanwhile: these took up to 5 s."""
    begun = time.process_time()
    with suppress(ValueError):
        compiled(part * (size // len(part)))
    assert time.process_time() - begun < 1


def test_as_many_names_as_a_request_can_hold_are_one_expression() -> None:
    names = [f"orders-{region}.v1" for region in range(1_800)]
    expression = "|".join(name.replace(".", r"\.") for name in names)
    assert len(expression) > 25_000
    assert compiled(expression).fullmatch(names[-1])
    assert compiled("([a-z0-9._-]{1,249}|(?i:eu|us)-.*)?").fullmatch("EU-orders")


def test_an_expression_that_would_take_python_for_ever() -> None:
    started = time.monotonic()
    assert not compiled("(a*)*(a|a)*(aa?)*b").fullmatch("a" * 100_000)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("expression", ["(" * 2_000 + ".*" + ")" * 2_000, "(a*)" * 2_000])
def test_groups_cost_nothing(expression: str) -> None:
    """RE2 carries what each of them matched from letter to letter: ten seconds for a name."""
    begun = time.process_time()
    assert compiled(expression).fullmatch("a" * 249)
    assert time.process_time() - begun < 1


def test_nothing_is_kept_of_an_expression_that_nobody_has() -> None:
    """RE2's wrapper keeps the last 128, whoever sent them, with what they needed to match."""
    import re2

    assert compiled("a+").fullmatch("aa")
    assert re2._Regexp._make.cache_info().currsize == 0
