"""What the values of flags mean: each is a `type` of argparse, and says in a line what is wrong."""

from __future__ import annotations

import argparse
import datetime
import math
import os
import re
import sys

from storage.properties import MalformedProperties, parse_properties

_SECRET = re.compile(r"(password|secret|sasl\.jaas\.config|keystore\.key)$")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def names(text: str) -> tuple[str, ...]:
    """Each once: who reads topics would read one that is named twice twice."""
    found = dict.fromkeys(topic_name(name.strip()) for name in text.split(",") if name.strip())
    return tuple(found) or (topic_name(text),)


def topic_name(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no topic name")
    return text


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return key.strip(), value


def client_file(text: str) -> dict[str, str]:
    """Properties of Kafka's Java client; which broker is meant, other flags say."""
    try:
        with open(text, "rb") as file:
            others = os.fstat(file.fileno()).st_mode & 0o037  # a group may read
            found = parse_properties(file.read())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error.strerror}") from None
    except MalformedProperties as error:
        raise argparse.ArgumentTypeError(f"{text} is not a properties file: {error}") from None
    if others and any(_SECRET.search(key) for key in found):
        print(f"others may read the secrets in {text}: chmod 600", file=sys.stderr)
    found.pop("bootstrap.servers", None)
    return found


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a duration such as 30s, 5m, 1h")
    return int(match.group(1)) * _UNITS[match.group(2)]


def interval_ms(text: str) -> int:
    """How often to do something."""
    value = duration_ms(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is too short; such as 30s")
    return value


def time_ms(text: str) -> int:
    """Ms since 1970 from digits (ms) or ISO 8601; without a zone it is UTC."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected 2026-01-31, 2026-01-31T12:00 (UTC) or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)
