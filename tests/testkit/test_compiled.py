"""Programs in Java are compiled once for each of their versions, and run beside what they need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testkit import compiled, jars
from testkit.quick_jvm import QUICK_JVM
from testkit.require import require_command

PROGRAM = """package some.where;
public final class Greeting {
    public static void main(String[] words) { System.out.print("%s " + words[0]); }
}
"""


def test_a_java_program_is_compiled_once_for_each_of_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_command("java", "apt-get install openjdk-17-jre-headless")
    monkeypatch.setattr(compiled, "CACHE", tmp_path / "cache")
    source = tmp_path / "Greeting.java"

    def run(greeting: str) -> str:
        source.write_text(PROGRAM % greeting)
        words = compiled.java_program(source, str(tmp_path / "nothing.jar"))
        command = [jars.java(), *QUICK_JVM, *words, "world"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def classes() -> dict[Path, int]:
        found = (tmp_path / "cache").rglob("*.class")
        return {path: path.stat().st_mtime_ns for path in found}

    assert run("hello") == "hello world"
    once = classes()
    assert len(once) == 1
    assert run("hello") == "hello world"
    assert classes() == once
    assert run("good morning,") == "good morning, world"
    assert len(classes()) == 2
