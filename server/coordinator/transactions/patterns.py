"""Regular expressions of strangers, matched in linear time (PURE).

Why: Kafka matches with RE2, whose time grows with the text's length only. Python's `re` tries one
way after the other, so a client's pattern of ten characters could stop the broker for years.

How: the pattern becomes a program that is run on all its branches at once (Thompson 1968). What
one character may be (`[a-z]`, `\\d`, `.`) is asked of `re`, of one character at a time.

Syntax: what RE2 and Java share: literals, `.`, classes, escapes, groups, `|`, `* + ?` and `{n,m}`
(lazy ones match the same whole texts), `^ $`. Refused, unlike RE2: flags, `\\b`, POSIX and Unicode
classes, `\\Q`, and what makes more than `STEPS_MAX` steps. Back references and looking ahead RE2
does not know either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

LENGTH_MAX = 1_000
STEPS_MAX = 2_000
_REPEATS_MAX = 1_000
_DEPTH_MAX = 50
_NO_END = -1

_COUNTED = re.compile(r"\{(\d{1,4})(,(\d{1,4})?)?\}")
_GROUP_HEAD = re.compile(r"\?:|\?P?<[A-Za-z_]\w*>")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_CLASS_ESCAPES = frozenset("dDwWsS")
_CONTROL_ESCAPES = frozenset("nrtfv")


class InvalidPattern(ValueError):
    """Why a text is no regular expression that is understood here."""


class _Step(NamedTuple):
    """One of the program: a character that must come, or where to go on without one."""

    character: re.Pattern[str] | None = None
    goes_to: tuple[int, ...] = ()
    """Relative to this step; of a character: the next one."""
    only_at: str = ""
    """`^`: only at the beginning, `$`: only at the end."""


_Program = list[_Step]


class LinearPattern:
    """A compiled pattern. Raises InvalidPattern."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise InvalidPattern(f"longer than {LENGTH_MAX} characters")
        self._program = _Parser(text).program()

    def matches(self, text: str) -> bool:
        """Whether it matches the whole text."""
        program = self._program
        states = self._reached((0,), text, 0)
        for position, character in enumerate(text):
            nexts = []
            for state in states:
                wanted = program[state].character if state < len(program) else None
                if wanted is not None and wanted.match(character):
                    nexts.append(state + 1)
            states = self._reached(nexts, text, position + 1)
        return len(program) in states

    def _reached(self, states: Iterable[int], text: str, position: int) -> set[int]:
        """The steps one can be at without another character."""
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state in found:
                continue
            found.add(state)
            step = self._program[state] if state < len(self._program) else _Step()
            if (step.only_at == "^" and position) or (step.only_at == "$" and position < len(text)):
                continue
            waiting += [state + distance for distance in step.goes_to]
        return found


class _Parser:
    """From text to program, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def program(self) -> _Program:
        program = self._alternatives()
        if self._at < len(self._text):
            raise InvalidPattern("unexpected )")
        return program

    def _alternatives(self) -> _Program:
        program = self._sequence()
        while self._takes("|"):
            other = self._sequence()
            fork = _Step(goes_to=(1, len(program) + 2))
            program = [fork, *program, _Step(goes_to=(len(other) + 1,)), *other]
        return _limited(program)

    def _sequence(self) -> _Program:
        program: _Program = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            program = _limited(program + self._repeated())
        return program

    def _repeated(self) -> _Program:
        atom = self._atom()
        counts = self._counts()
        if counts is None:
            return atom
        self._takes("?")  # lazy: the same whole texts match
        if self._counts() is not None:
            raise InvalidPattern("a repetition of a repetition")
        return _repeat(atom, *counts)

    def _counts(self) -> tuple[int, int] | None:
        for sign, counts in (("*", (0, _NO_END)), ("+", (1, _NO_END)), ("?", (0, 1))):
            if self._takes(sign):
                return counts
        counted = _COUNTED.match(self._text, self._at)
        if counted is None:
            return None
        self._at = counted.end()
        low, comma, high = counted.groups()
        least = int(low)
        most = least if comma is None else _NO_END if high is None else int(high)
        if max(least, most) > _REPEATS_MAX or (most != _NO_END and most < least):
            raise InvalidPattern(f"bad repetition {counted.group()}")
        return least, most

    def _atom(self) -> _Program:
        character = self._text[self._at]
        if character == "(":
            return self._group()
        if character == "[":
            return [_Step(_one_character(self._class()))]
        if character in "*+?" or _COUNTED.match(self._text, self._at):
            raise InvalidPattern(f"nothing to repeat before {character}")
        self._at += 1
        if character in "^$":
            return [_Step(goes_to=(1,), only_at=character)]
        if character == ".":
            return [_Step(_one_character("."))]
        if character == "\\":
            return [_Step(_one_character(self._escape()))]
        return [_Step(_one_character(re.escape(character)))]

    def _group(self) -> _Program:
        self._at += 1
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidPattern("groups in too many groups")
        head = _GROUP_HEAD.match(self._text, self._at)
        if head is not None:
            self._at = head.end()
        program = self._alternatives()
        if not self._takes(")"):
            raise InvalidPattern("missing )")
        self._depth -= 1
        return program

    def _class(self) -> str:
        found = _CLASS.match(self._text, self._at)
        if found is None:
            raise InvalidPattern("missing ]")
        self._at = found.end()
        text = found.group()
        if "[:" in text or re.search(r"\\[^dDwWsSnrtfv\W_]", text):
            raise InvalidPattern(f"unknown in a class: {text}")
        # What Python may take to mean more than one set one day.
        return text[0] + re.sub(r"([\[&~|])", r"\\\1", text[1:])

    def _escape(self) -> str:
        if self._at == len(self._text):
            raise InvalidPattern("trailing backslash")
        character = self._text[self._at]
        self._at += 1
        if character in _CLASS_ESCAPES or character in _CONTROL_ESCAPES:
            return "\\" + character
        if character.isalnum():
            raise InvalidPattern(f"unknown escape \\{character}")
        return re.escape(character)

    def _takes(self, character: str) -> bool:
        is_there = self._text.startswith(character, self._at)
        self._at += is_there
        return is_there


def _repeat(atom: _Program, least: int, most: int) -> _Program:
    if len(atom) * max(least, most, 1) > STEPS_MAX:
        raise InvalidPattern(f"more than {STEPS_MAX} steps")
    program = atom * least
    if most == _NO_END:
        fork, back = _Step(goes_to=(1, len(atom) + 2)), _Step(goes_to=(-len(atom) - 1,))
        return [*program, fork, *atom, back]
    for left in range(most - least, 0, -1):
        program += [_Step(goes_to=(1, left * (len(atom) + 1))), *atom]
    return program


def _limited(program: _Program) -> _Program:
    if len(program) > STEPS_MAX:
        raise InvalidPattern(f"more than {STEPS_MAX} steps")
    return program


def _one_character(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.ASCII)
    except re.error as error:
        raise InvalidPattern(str(error)) from None
