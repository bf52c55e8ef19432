"""JAAS configuration as Kafka's users write it: one login module and its options. PURE.

    sasl.jaas.config   org.apache.kafka...PlainLoginModule required username="a" password="b";
    a file             KafkaServer { ...PlainLoginModule required user_alice="secret"; };

Grammar (Kafka's JaasConfig, Java's ConfigFile; LN-5): flags required, requisite, sufficient,
optional; values in quotes, with backslash escapes, or bare words that are no numbers; comments `//`
and `/* */`. Exactly one module where Kafka wants one, ended by `;`.

Errors name what was expected and never quote what stands there: it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_FLAGS = frozenset(("required", "requisite", "sufficient", "optional"))
_LENGTH_MAX = 1 << 20
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\n]|\\.)*)'
    |(?P<sign>[=;{}])
    |(?P<word>[A-Za-z_$][\w$.\-]*)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class JaasError(ValueError):
    """What is wrong with a JAAS text, without quoting it."""


class LoginModule(NamedTuple):
    """A module's class and its options."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name})"  # options are secrets


class _Token(NamedTuple):
    kind: str
    text: str


def _tokens(text: str) -> Iterator[_Token]:
    if len(text) > _LENGTH_MAX:
        raise JaasError("it is longer than a megabyte")
    pos = 0
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise JaasError(f"what stands at character {pos + 1} is neither a word nor in quotes")
        pos = match.end()
        kind = match.lastgroup or ""
        if kind in ("double", "single"):
            value = _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), match[kind])
            yield _Token("value", value)
        elif kind != "skip":
            yield _Token(kind, match[kind])
    yield _Token("end", "")


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._pos = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._pos]

    def take(self, *kinds: str, what: str) -> str:
        token = self.next
        if token.kind not in kinds:
            raise JaasError(f"expected {what}")
        self._pos += 1
        return token.text

    def sign(self, text: str, what: str) -> None:
        if self.next != _Token("sign", text):
            raise JaasError(f"expected {what}")
        self._pos += 1

    def module(self) -> LoginModule:
        name = self.take("word", what="the class of a login module")
        flag = self.take("word", what=f"a flag after {name}: required")
        if flag.lower() not in _FLAGS:
            raise JaasError(f"expected one of {', '.join(sorted(_FLAGS))} after {name}")
        options: dict[str, str] = {}
        while self.next != _Token("sign", ";"):
            key = self.take("word", "value", what='; at the end, or an option such as username="a"')
            self.sign("=", f"= after the option {key!r}" if len(key) < 64 else "= after an option")
            options[key] = self.take("value", "word", what=f"the value of {key!r} in quotes")
        self.sign(";", "; at the end")
        return LoginModule(name, options)


def parse_jaas(text: str) -> LoginModule:
    """The one module of a `sasl.jaas.config`. Raises JaasError."""
    reader = _Reader(text)
    module = reader.module()
    if reader.next.kind != "end":
        raise JaasError("expected one login module, there is more after the first ;")
    return module


def parse_jaas_file(text: str) -> dict[str, list[LoginModule]]:
    """The modules of each section of a JAAS file. Raises JaasError."""
    reader = _Reader(text)
    sections: dict[str, list[LoginModule]] = {}
    while reader.next.kind != "end":
        name = reader.take("word", "value", what="the name of a section, such as KafkaServer")
        if name in sections:
            raise JaasError(f"the section {name} stands there twice")
        reader.sign("{", f"{{ after {name}")
        sections[name] = []
        while reader.next != _Token("sign", "}"):
            sections[name].append(reader.module())
        reader.sign("}", "}")
        reader.sign(";", f"; after the section {name}")
    return sections
