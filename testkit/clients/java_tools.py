"""Apache Kafka's command-line tools, run from Python: `tools.run("TopicCommand", "--list", ...)`.

One JVM runs them all (ToolRunner.java): about 0.1 s a command instead of 1.5 s. A command that
hangs is ended with its JVM; the next command gets a new one.
"""

from __future__ import annotations

import re
import struct
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from testkit import jars
from testkit.compiled import java_program
from testkit.quick_jvm import KAFKA_JVM

COMMAND_TIMEOUT_S = 60.0
_CLIENTS_LEFT_OPEN_MAX = 5
"""Then the next command gets a new JVM."""
_JVM_OPTIONS = (
    "-Xmx256M", *KAFKA_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)  # fmt: skip

_PACKAGES = {
    "ConfigCommand": "kafka.admin",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer",
    "ConsoleShareConsumer": "org.apache.kafka.tools.consumer",
    "ShareGroupCommand": "org.apache.kafka.tools.consumer.group",
    "StreamsGroupCommand": "org.apache.kafka.tools.streams",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign",
}


class ToolTimeout(Exception):
    """A command gave no answer in time; its JVM was ended."""


@dataclass(slots=True)
class Finished:
    """Exit code, standard output and standard error of one command."""

    command: tuple[str, ...]
    code: int
    out: str
    err: str

    def ok(self) -> str:
        """The standard output; an AssertionError with both outputs when the exit code is not 0."""
        assert self.code == 0, f"{' '.join(self.command)}\nexit {self.code}\n{self.out}\n{self.err}"
        return self.out

    @property
    def text(self) -> str:
        return self.out + self.err


class JavaTools:
    """Runs the tools' main classes in a JVM that it starts with the first command."""

    def __init__(self) -> None:
        self._jvm: subprocess.Popen[bytes] | None = None

    def run(
        self, tool: str, *args: str, stdin: str = "", timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Finished:
        """One command. `tool` is the class's last name, with `.` in it the whole name."""
        main_class = (
            tool if "." in tool else f"{_PACKAGES.get(tool, 'org.apache.kafka.tools')}.{tool}"
        )
        jvm = self._running_jvm()
        words = [main_class, *args]
        frame = struct.pack(">i", len(words)) + b"".join(_field(word) for word in words)
        assert jvm.stdin is not None
        jvm.stdin.write(frame + _field(stdin))
        jvm.stdin.flush()
        late = threading.Timer(timeout_s, jvm.kill)
        late.start()
        try:
            code, left_open = struct.unpack(">ii", self._read(8))
            out, err = (self._read(struct.unpack(">i", self._read(4))[0]) for _ in range(2))
        except EOFError as ended:
            self.close()
            raise ToolTimeout(f"no answer in {timeout_s} s: {' '.join(words)}") from ended
        finally:
            late.cancel()
        if left_open > _CLIENTS_LEFT_OPEN_MAX:
            self.close()
        return Finished(
            tuple(words), code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )

    def close(self) -> None:
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm.communicate()
            self._jvm = None

    def _running_jvm(self) -> subprocess.Popen[bytes]:
        if self._jvm is None or self._jvm.poll() is not None:
            command = [
                jars.java(), *_JVM_OPTIONS,
                *java_program(
                    Path(__file__).with_name("ToolRunner.java"),
                    jars.class_path(without=jars.tools_jar().name),
                ),
                str(jars.tools_jar()),
            ]  # fmt: skip
            self._jvm = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._jvm

    def _read(self, count: int) -> bytes:
        assert self._jvm is not None
        assert self._jvm.stdout is not None
        data = self._jvm.stdout.read(count)
        if len(data) < count:
            raise EOFError
        return data


def _field(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw


def row_of(text: str, topic: str) -> list[str]:
    """The words of the one row that kafka-consumer-groups shows of the topic."""
    (row,) = [line.split() for line in text.splitlines() if re.search(rf"\S+ +{topic} +\d", line)]
    return row
