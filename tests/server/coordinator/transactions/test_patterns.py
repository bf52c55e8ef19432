"""Patterns of strangers match what Python's match, and cannot stop a broker."""

from __future__ import annotations

import random
import re

import pytest

from server.coordinator.transactions.patterns import InvalidPattern, LinearPattern

TEXTS = [
    "", "a", "b", "ab", "aab", "abab", "aaaa", "orders-1", "orders-22", "t.x", "tax", "-", "[", "]",
    "a]", "&&", "\n", "é", "5", "_", " ", "a\nb", "^", "$", "{1}", "a{1}", "abc" * 5,
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a", "ab", "a|b", "a|", "|", "a*", "a+", "a?", "(a|b)*", "(ab)+", "a{2}", "a{2,}",
        "a{1,4}", "a{0}", "(a|ab)(c|bcd)?b*", "orders-.", r"orders-\d+", r"orders-\d{1,2}", ".*",
        "t.x", r"t\.x", "[ab]*", "[^ab]*", "[a-z-]*", "[]a]*", "[^]]*", r"[\]a]*", r"[\[]", "[&&]*",
        r"\w+", r"\W", r"\s", r"\S*", r"\D*", "^a$", "a^b", "a$b", "^", "(^a|b$)*", r"\^", r"\$",
        "(?:ab)*", "(?P<name>ab)*", "a*?b", "a+?", "a??b", "(a*)*", "(a*)+b", "]",
        "((a)(b))*", "(abc){5}", r"[\d_]", r"[\n]", "é", "()", "(|a)+", r"a\nb", "x*y*z*",
    ],
)  # fmt: skip
def test_it_matches_as_python_does(pattern: str) -> None:
    linear, known = LinearPattern(pattern), re.compile(pattern, re.ASCII)
    for text in TEXTS:
        expected = known.fullmatch(text) is not None
        assert linear.matches(text) == expected, (pattern, text)


def test_random_patterns_match_as_pythons_do() -> None:
    chance = random.Random(11)

    def expression(depth: int) -> str:
        if depth == 0:
            return chance.choice(["a", "b", ".", "[ab]", "[^a]", "c"])
        parts = [expression(depth - 1) for _ in range(chance.randint(1, 3))]
        whole = chance.choice(["", "|"]).join(parts)
        return f"({whole}){chance.choice(['', '*', '+', '?', '{2}', '{1,2}', '{0,3}', '{2,}'])}"

    for _ in range(300):
        pattern = expression(chance.randint(1, 2))
        linear, known = LinearPattern(pattern), re.compile(pattern)
        for _ in range(20):
            text = "".join(chance.choices("abc", k=chance.randint(0, 8)))
            assert linear.matches(text) == (known.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[a", "*", "+a", "?", "a**", "a*+", "a{2}{3}", "a{3,2}",
        "a{1001}", "{1}", "a|{2}", "\\", r"\b", r"\1", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)",
        "(?i)a", r"\pL", r"\Qa\E", "[b-a]", "[[:alpha:]]", r"[\b]", "((a{100}){100}){100}",
        "(" * 60 + ")" * 60, "a" * 1_001, "|".join(["a{30}"] * 70),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        LinearPattern(pattern)


def test_where_re2_differs_from_python() -> None:
    assert LinearPattern("a{,2}").matches("a{,2}")
    assert LinearPattern("[[]").matches("[")
    assert not LinearPattern("a$").matches("a\n")


def test_a_pattern_that_would_take_python_for_ever() -> None:
    assert not LinearPattern("(a*)*(a|a)*(aa?)*b").matches("a" * 1_000)
