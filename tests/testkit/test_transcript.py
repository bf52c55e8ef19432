"""Consoles in documents: what is a command, what it shows, and what may differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.delivery.transcript import Command, console_blocks, missing


def test_blocks_know_their_heading_their_commands_and_what_is_shown(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "# Title\n## One\n```console\n$ first   # or: make\nshown\n\n$ second \\\n  more\n```\n"
        "## Two\n```python\n$ no\n```\n```console\n# as root\n```\n"
    )
    one, two = console_blocks(document)
    assert (one.heading, one.line, two.heading) == ("One", 3, "Two")
    assert one.commands == (Command("first", ("shown", "")), Command("second \\\n  more", ()))
    assert two.commands == ()


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("ready after 1.4 s", "ready after 12 s"),
        ("node 1   here", "node 1 here"),
        ("cluster Rv4bCZO9RhCI1vG9E0TlXA:", "cluster kFKaeOc7QgiADWy4nRyCHg:"),
        ("log /home/me/barnabas-data/node.log", "log /tmp/x/barnabas-data/node.log"),
        ("and so on...", "and so on, and on"),
        ("node 2  leader", "node 2  voter"),
    ],
)
def test_what_may_differ(shown: str, printed: str) -> None:
    assert missing((shown,), f"something else\n{printed}\n") == []


@pytest.mark.parametrize("printed", ["hell", "hello there", "", "HELLO"])
def test_another_line_is_not_the_shown_one(printed: str) -> None:
    assert missing(("hello",), printed) == ["hello"]


def test_lines_come_in_their_order() -> None:
    assert missing(("a", "b"), "b\na\n") == ["b"]
