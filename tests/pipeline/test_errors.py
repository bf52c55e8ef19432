"""What Spark, Java and the system say becomes one line with the next step."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from pipeline.errors import EXIT_USAGE, PipelineError, explain, from_os, not_installed, short
from pipeline.spark import kafka_admin


class Java:
    """An exception of the JVM, as Py4J shows it."""

    def __init__(self, text: str, cause: Java | None = None) -> None:
        self._text, self._cause = text, cause

    def toString(self) -> str:  # noqa: N802
        return self._text

    def getCause(self) -> Java | None:  # noqa: N802
        return self._cause


class Gone(Java):
    def toString(self) -> str:  # noqa: N802
        raise ConnectionError("the JVM has ended")


def of_java(java: Java) -> Exception:
    error = Exception("An error occurred while calling o1.start")
    error.java_exception = java  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("java.io.IOException: No space left on device", "the disk is full"),
        ("has been compiled by a more recent version (class file version 61.0)", "too old"),
        ("JAVA_HOME is not set", "there is no Java"),
        ("[unresolved dependency: org.apache.spark#spark-sql-kafka: not found]", "could not fetch"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka.", "--packages a:b:1"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "executors lacks"),
        ("Offset 7 for partition t-0 was changed from 7 to 9", "run the same command again"),
        ("TimeoutException: Timed out waiting for a node assignment.", "gives no answer"),
        ("org.apache.kafka.common.errors.SaslAuthenticationException", "refused us"),
        ("AccessControlException: Permission denied: user=a", "check who owns"),
        ("All masters are unresponsive! Giving up.", "check --master"),
    ],
)
def test_each_known_cause_is_told_with_what_to_do(said: str, told: str) -> None:
    line = explain(RuntimeError(said), connector="a:b:1")
    assert line is not None
    assert told in line
    assert "\n" not in line


def test_a_topic_that_is_not_there_is_named() -> None:
    said = "UnknownTopicOrPartitionException: the topic [orders.eu] was not found"
    assert "(topic orders.eu)" in (explain(RuntimeError(said)) or "")
    for said in ("UnknownTopicOrPartitionException", "topic a: No space left on device"):
        assert "(topic" not in (explain(RuntimeError(said)) or "(topic")


def test_the_cause_is_told_and_not_its_consequence() -> None:
    said = "TimeoutException: Call(describe) ... caused by: No space left on device"
    assert "the disk is full" in (explain(RuntimeError(said)) or "")


def test_a_cause_is_found_below_what_was_raised() -> None:
    error = RuntimeError("the query failed")
    error.__cause__ = OSError("No space left on device")
    assert "the disk is full" in (explain(error) or "")
    java = Java("StreamingQueryException", Java("SparkException", Java("Permission denied")))
    assert "permission denied" in (explain(of_java(java)) or "")


def test_causes_that_go_round_are_told_a_few_times() -> None:
    told: list[str] = []

    class Round(Exception):
        def __str__(self) -> str:
            told.append("round")
            assert len(told) < 50
            return "round"

        toString = __str__  # noqa: N815

        def getCause(self) -> Round:  # noqa: N802
            return self

    error = Round()
    error.__cause__ = error
    assert explain(error) is None
    assert len(told) == 10
    told.clear()
    assert explain(of_java(error)) is None  # type: ignore[arg-type]
    assert len(told) == 12


def test_what_java_said_before_it_ended_is_enough() -> None:
    error = of_java(Java("IOException: No space left on device", Gone("")))
    assert "the disk is full" in (explain(error) or "")


def test_our_own_errors_come_back_from_an_executor_as_they_were() -> None:
    said = "PythonException: Traceback ...\npipeline.sink.rows.SinkError: row 7 has no topic\n at x"
    assert explain(RuntimeError(said)) == "row 7 has no topic"


def test_the_log_of_spark_is_asked_for_what_keeps_it_from_starting_only() -> None:
    unknown = RuntimeError("Java gateway process exited")
    memory = "Invalid maximum heap size: -Xmxx\nError: Could not create the Java Virtual Machine."
    assert "spark.driver.memory" in (explain(unknown, memory) or "")
    assert "--master" in (explain(unknown, "SparkException: Master must either be yarn or") or "")
    assert "there is no Java" in (explain(unknown, "java: command not found") or "")
    # An older line of a log about a user's permissions says nothing of this failure.
    assert explain(unknown, "SaslAuthenticationException") is None


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EACCES, "check who owns it"),
        (errno.ENOENT, "check the path"),
    ],
)
def test_a_systems_error_names_the_file_and_the_step(number: int, step: str) -> None:
    told = from_os(OSError(number, "said so", "/lake/x"))
    assert str(told).startswith("/lake/x: said so; ")
    assert step in str(told)
    assert told.exit_code == 1


def test_another_systems_error_is_passed_on() -> None:
    assert str(from_os(OSError("broken"))) == "file: broken"


def test_an_error_says_its_line_and_nothing_else() -> None:
    assert str(PipelineError("wrong", EXIT_USAGE)) == "wrong"


def test_an_unknown_error_is_told_by_its_first_line_that_says_something() -> None:
    assert short(Exception("x" * 900), limit=20) == "Exception: " + "x" * 9
    assert short(Exception("An error occurred while calling o1.get.")) == "Exception"


def test_of_javas_exceptions_the_innermost_is_told() -> None:
    root = Java("org.apache.kafka.ConfigException: Invalid value FOO\nJVM stacktrace:\n at x")
    failed = of_java(Java("org.apache.kafka.KafkaException: Failed to create", root))
    assert short(failed) == "ConfigException: Invalid value FOO"
    assert short(of_java(Java("a.b.CallException: says it", Gone("")))) == "CallException: says it"


def test_what_kafkas_client_does_not_take_is_told_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_admin, "check_reachable", lambda _bootstrap: None)
    jvm = MagicMock()
    wrong = Java("org.apache.kafka.common.config.ConfigException: Invalid value FOO")
    failed = Java("org.apache.kafka.common.KafkaException: Failed to create new", wrong)
    jvm.org.apache.kafka.clients.admin.AdminClient.create.side_effect = of_java(failed)
    with pytest.raises(PipelineError, match="--client-property say: ConfigException: Invalid"):
        kafka_admin.KafkaAdmin(jvm, "localhost:1", {"security.protocol": "FOO"})


@pytest.mark.parametrize(
    "words",
    ["rescue DIR --to DIR/lake", "segments DIR --topic t", "profile --bootstrap a:1 --topic t"],
)
def test_without_the_extra_a_command_says_how_to_install_it(tmp_path: Path, words: str) -> None:
    """An import in any module, however early, is no traceback."""
    script = (
        "import sys; sys.modules['numpy'] = None;"
        "from pipeline.cli import run_command; sys.exit(run_command(sys.argv[1:]))"
    )
    arguments = words.replace("DIR", str(tmp_path)).split()
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stderr == (
        "barnabas: the pipeline needs numpy; install it with: pip install 'barnabas[spark]'\n"
    )
    assert done.returncode == 1


def test_a_package_that_is_missing_is_named_with_what_brings_it() -> None:
    error = not_installed("fastavro")
    assert str(error) == (
        "the pipeline needs fastavro; install it with: pip install 'barnabas[spark]'"
    )


def test_known_causes_are_found_in_what_spark_says() -> None:
    error = RuntimeError("Job aborted: java.io.IOException: No space left on device")
    assert "the disk is full" in (explain(error) or "")
    error = RuntimeError("Job aborted: java.lang.ArithmeticException: long overflow")
    assert "a timestamp that Spark cannot hold" in (explain(error) or "")
    error = RuntimeError("x\npipeline.segments.decode.SegmentError: /d/0.log: damaged\n at y")
    assert explain(error) == "/d/0.log: damaged"
    assert explain(ValueError("nothing we know")) is None
