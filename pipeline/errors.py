"""What can go wrong outside of us, said in one line with the next step.

Why: an exception of Spark is two hundred lines of Java. A person needs to know which of a dozen
things happened and what to do. `explain` finds the known causes in the text of any exception (Spark
wraps the true cause many times, but always prints it); what is unknown stays itself, with the
place of Spark's log.
"""

from __future__ import annotations

import errno
import re
from typing import NamedTuple

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2


class PipelineError(Exception):
    """A failure the person can mend: one line for stderr, and the exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UnexplainedError(PipelineError):
    """Nothing we know; the log of Spark that its text names is kept."""


def not_installed(package: str) -> PipelineError:
    """One of those that the `spark` extra brings is missing."""
    return PipelineError(
        f"the pipeline needs {package}; install it with: pip install 'barnabas[spark]'"
    )


class _Cause(NamedTuple):
    pattern: str
    message: str


_OF_START = 7
"""So many of them keep Spark from starting; then its log is all that tells."""
# In this order: the first that matches wins, so causes stand before their consequences.
_CAUSES = (
    _Cause(
        r"No space left on device|Disk quota exceeded|SQLITE_FULL|Errno 28",
        "the disk is full; free some space (or choose another directory, SPARK_LOCAL_DIRS for"
        " Spark's own scratch files) and run the same command again: nothing half written counts",
    ),
    _Cause(
        r"UnsupportedClassVersionError|class file version",
        "this Java is too old for Spark 4; install Java 17 or newer and point JAVA_HOME at it",
    ),
    _Cause(
        r"JAVA_HOME is not set|java: (command )?not found|Unable to locate a Java Runtime",
        "there is no Java; install a Java runtime, 17 or newer (Debian: openjdk-17-jre-headless),"
        " or set JAVA_HOME",
    ),
    _Cause(
        r"unresolved dependency|UNRESOLVED DEPENDENCIES|Server access error|download failed",
        "Spark could not fetch {connector}; check that this machine reaches Maven Central or set"
        " spark.jars.repositories (--conf) to a mirror; --conf spark.jars.ivySettings=FILE"
        " for a proxy",
    ),
    _Cause(
        r"Failed to find data source: kafka|DATA_SOURCE_NOT_FOUND.*kafka",
        "this Spark has no Kafka connector; with spark-submit add --packages {connector}",
    ),
    _Cause(
        r"Could not create the Java Virtual Machine",
        "Java did not start with the memory and options that it was given; correct --conf"
        " spark.driver.memory, spark.driver.extraJavaOptions or JAVA_TOOL_OPTIONS",
    ),
    _Cause(
        r"Master must either be|Could not parse Master URL",
        "there is no such Spark master; --master is local[N], spark://HOST:PORT, yarn or"
        " k8s://HOST:PORT",
    ),
    _Cause(
        r"No module named '(numpy|pyarrow|pandas)'",
        "the Python of Spark's executors lacks NumPy, PyArrow or pandas; install them there"
        " (pip install pyarrow pandas), or point PYSPARK_PYTHON at a Python that has them",
    ),
    _Cause(
        r"ArithmeticException: long overflow",
        "a record has a timestamp that Spark cannot hold (of the year 294247 or later: nanoseconds"
        " where Kafka has milliseconds?); leave its topic out, or read it by `segments` or"
        " `rescue`, which write the latest time that there is",
    ),
    _Cause(
        r"UnknownTopicOrPartitionException|This server does not host this topic-partition",
        "a topic does not exist on that broker (or was deleted while the job ran);"
        " list them with kafka-topics.sh --list or kcat -L",
    ),
    _Cause(
        r"(?i)some data may have been lost|data loss|offset.{0,40}(was changed|out of range)",
        "Spark could not read all offsets that the broker had a moment ago; run the same command"
        " again: it asks the broker what is left, and says exactly what is lost, if anything is",
    ),
    _Cause(
        r"Timed out waiting for a node assignment|TimeoutException: Call\(|"
        r"Failed to get offsets before timeout|Connection to node .* could not be established",
        "the broker gives no answer; check that it runs and that the address and port it advertises"
        " can be reached from here",
    ),
    _Cause(
        r"SaslAuthenticationException|SslAuthenticationException|AuthorizationException",
        "the broker refused us; check --client-config (security.protocol, sasl.*, ssl.*) and the"
        " permissions of that user",
    ),
    _Cause(
        r"Permission denied|AccessControlException|Errno 13",
        "permission denied; check who owns the directory",
    ),
    _Cause(
        r"Initial job has not accepted any resources|All masters are unresponsive",
        "the Spark master is not right or has no free executors; check --master",
    ),
)


_PACKAGE = re.compile(r"^(?:\w+\.)+(?=\w+(?:Exception|Error)\b)")
"""Of the class of an exception."""
_SAYS_NOTHING = re.compile(r"at |JVM stacktrace|(\w+: )?An error occurred while calling ")


def explain(error: BaseException, log_text: str = "", connector: str = "") -> str | None:
    """The one line for a known cause in the error or in Spark's log; None when it is unknown."""
    text = _text(error)
    own = re.search(r"(?:PlanError|SegmentError|SinkError|RegistryError): (.+)", text)
    if own is not None:
        return own.group(1)
    for cause in _CAUSES:
        if re.search(cause.pattern, text):
            return _with_detail(cause.message.replace("{connector}", connector), text)
    for cause in _CAUSES[:_OF_START]:
        if re.search(cause.pattern, log_text):
            return cause.message.replace("{connector}", connector)
    return None


def from_os(error: OSError) -> PipelineError:
    """A system error of a file, as a line."""
    full = "; the disk is full: free some space and run the same command again"
    step = {
        errno.ENOSPC: full,
        errno.EDQUOT: full,
        errno.EACCES: "; check who owns it",
        errno.ENOENT: "; check the path",
    }.get(error.errno or 0, "")
    return PipelineError(f"{error.filename or 'file'}: {error.strerror or error}{step}")


def short(error: BaseException, limit: int = 300) -> str:
    """The line of an exception that says most: of Java's, its innermost cause."""
    java = getattr(error, "java_exception", None)
    said = [f"{type(error).__name__}: {error}", *_java_texts(java)]
    for text in reversed(said):
        for line in text.splitlines():
            line = _PACKAGE.sub("", line.strip())
            if line and not _SAYS_NOTHING.match(line):
                return line[:limit]
    return type(error).__name__


def _text(error: BaseException) -> str:
    """All an exception says, its causes too."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 10:
        parts.append(f"{type(seen).__name__}: {seen}")
        parts += _java_texts(getattr(seen, "java_exception", None))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(parts)


def _java_texts(java: object) -> list[str]:
    """What an exception of the JVM says, and then its causes."""
    texts: list[str] = []
    try:
        while java is not None and len(texts) < 12:
            texts.append(str(java.toString()))  # type: ignore[attr-defined]
            java = java.getCause()  # type: ignore[attr-defined]
    except Exception:  # the JVM may be gone; what we have must do
        return texts
    return texts


def _with_detail(message: str, text: str) -> str:
    named = re.search(r"(?:topic(?:s)?|partition) \[?([\w.-]+)\]?", text)
    return (
        f"{message} (topic {named.group(1)})"
        if named and "a topic does not" in message
        else message
    )
