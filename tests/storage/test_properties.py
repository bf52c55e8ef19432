"""Java's properties format: by its documentation, and beside a package that also reads it."""

from __future__ import annotations

import re

import javaproperties
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.properties import MalformedProperties, parse_properties, property_entries

COMMENT_AFTER_NOTHING = re.compile(r"(^|[\r\n])[ \t\f]*\\(\r\n|\r|\n)[ \t\f]*[#!]")
pieces = st.sampled_from(
    (
        *"\n\r\t\f\x0b\x1c\x85 =:#!abun\u00e9\\",
        "\r\n",
        "\\\\",
        "\\u0041",
        "\\u00e9",
        "\\ud83d",
        "\\ude00",
        "\\u12",
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1\nb:2\rc 3\r\nd\te\n", {"a": "1", "b": "2", "c": "3", "d": "e"}),
        ("  a \f= \t1  \n", {"a": "1  "}),
        ("a = = b\nb : \nc", {"a": "= b", "b": "", "c": ""}),
        ("=x", {"": "x"}),
        ("# a=1\n \t! b=2\\\nc=#3", {"c": "#3"}),
        ("a=1,\\\n   2,\\\r\n\t3\nb=\\\n\nc=4", {"a": "1,2,3", "b": "", "c": "4"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("\\\n# as Java does: a comment\na=1", {"a": "1"}),
        ("a=1\\", {"a": "1"}),
        ("\\", {}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\=c\\:=\\td\\n\\z\\\\", {"a b=c:": "\td\nz\\"}),
        ("\\#a=\\u0041\\u00E9", {"#a": "A\u00e9"}),
        ("a=\\ud83d\\ude00 \\ud83d", {"a": "\U0001f600 \ud83d"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\x0b\x1c\x85b", {"a": "1\x0b\x1c\x85b"}),
    ],
)
def test_a_file_is_read_as_java_does(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text.encode("latin-1")) == expected


def test_an_entry_has_the_number_of_its_first_line() -> None:
    entries = property_entries(b"#\n\na=1\\\n  2\n\\\nb=3\n\\\n#\nc")
    assert list(entries) == [(3, "a", "12"), (6, "b", "3"), (9, "c", "")]


@pytest.mark.parametrize(
    "text", [b"a=1\n\nb=\\u00g0", b"\n\na\\u=", b"\n\na=\\u123\nb", b"\n\n\\u 123"]
)
def test_an_escape_without_its_digits_is_named_with_its_line(text: bytes) -> None:
    with pytest.raises(MalformedProperties, match="line 3: ") as error:
        parse_properties(text)
    assert error.value.line == 3


@given(st.lists(pieces, max_size=30).map("".join))
@example("a\\\n\\\\\n=b")
def test_the_package_reads_the_same(text: str) -> None:
    """But for a comment after a line of nothing but a backslash: Java skips it, the package not."""
    data = text.encode("latin-1")
    try:
        expected = javaproperties.loads(data)
    except javaproperties.InvalidUEscapeError:
        expected = None
    try:
        found = parse_properties(data)
    except MalformedProperties:
        found = None
    if not COMMENT_AFTER_NOTHING.search(text):
        assert found == expected


@given(st.dictionaries(st.text(), st.text()))
def test_what_the_package_writes_is_read(values: dict[str, str]) -> None:
    assert parse_properties(javaproperties.dumps(values).encode("latin-1")) == values
