"""kcat, as a person runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from testkit.require import require_command


class Kcat:
    """`Kcat(bootstrap)("-L")` answers what it printed. `told`: librdkafka's properties."""

    def __init__(self, bootstrap: str, told: Mapping[str, str] | None = None) -> None:
        self._command = [require_command("kcat", "Debian: apt-get install kcat"), "-b", bootstrap]
        for key, value in (told or {}).items():
            self._command += ["-X", f"{key}={value}"]

    def __call__(self, *words: str, stdin: str | bytes = "") -> str:
        done = subprocess.run(
            [*self._command, *words],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True, timeout=45, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"kcat {' '.join(words)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def there_and_back(self, topic: str) -> None:
        """Two records are written and read; the brokers are listed by the name they were given."""
        self("-P", "-t", topic, stdin="one\ntwo\n")
        assert self("-C", "-t", topic, "-o", "beginning", "-e", "-q") == "one\ntwo\n"
        assert "localhost" in self("-L")
