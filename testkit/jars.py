"""Apache Kafka 4.3.1 from Maven Central: where its jars are, fetched once.

What: `class_path()` answers the jars of the server and of the command-line tools, about 92 files.
Why: the same program and the same tests run against Apache Kafka and against Barnabas, so the
reference must be one command away and always the same release.
How: a generated POM that names two artifacts, `mvn dependency:copy-dependencies` into
`.cache/kafka-4.3.1/libs` of the checkout, under a file lock (several test processes may start at
once), into a temporary folder that is renamed when complete (a broken download leaves nothing
behind). Which registry Maven asks is Maven's configuration, not ours.
Duties of the caller: catch `JarsUnavailable`, whose text is the reason to show a person.
Standard library only: the benchmarks use this module too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.3.1"
CACHE_DIR = Path(__file__).resolve().parents[1] / ".cache" / f"kafka-{KAFKA_VERSION}"
MAVEN_TIMEOUT_S = 600

# slf4j-simple: without a binding the broker logs nothing, and a failed start has no explanation.
_ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_STREAMS = (("org.apache.kafka", "kafka-streams", KAFKA_VERSION), _ARTIFACTS[-1])
_CONNECT = (
    ("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
    ("org.apache.kafka", "connect-file", KAFKA_VERSION),
    _ARTIFACTS[-1],
)
_COMPLETE = ".complete"


class JarsUnavailable(Exception):
    """Java, Maven or an artifact is missing; the text says which and what was tried."""


def java() -> str:
    """Path of the `java` command. Raises JarsUnavailable when there is none."""
    return _command("java")


def libs() -> Path:
    """Folder that holds the jars; downloads them on first use.

    Raises JarsUnavailable when Java or Maven is missing or the download fails.
    """
    return _fetched("libs", _ARTIFACTS)


def _fetched(folder: str, artifacts: tuple[tuple[str, str, str], ...]) -> Path:
    target = CACHE_DIR / folder
    if (target / _COMPLETE).exists():
        return target
    java()
    mvn = _command("mvn")
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    with open(CACHE_DIR / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / _COMPLETE).exists():
            _download(mvn, target, artifacts)
    return target


def class_path(*, without: str | None = None) -> str:
    """The jars as one `-cp` argument, leaving out those whose file name starts with `without`."""
    jars = sorted(libs().glob("*.jar"))
    return os.pathsep.join(
        str(jar) for jar in jars if without is None or not jar.name.startswith(without)
    )


def streams_class_path() -> str:
    """Kafka Streams beside the server's jars; 95 MB more, of which RocksDB is the most."""
    return _class_path_with("streams", _STREAMS)


def connect_class_path() -> str:
    """A Connect worker and its file connectors beside the server's jars; 33 MB more."""
    return _class_path_with("connect", _CONNECT)


def _class_path_with(folder: str, artifacts: tuple[tuple[str, str, str], ...]) -> str:
    """The server's jars come first: an archive of their classes is of no use otherwise."""
    added = _fetched(folder, artifacts).glob("*.jar")
    server = {jar.name for jar in libs().glob("*.jar")}
    more = sorted(str(jar) for jar in added if jar.name not in server)
    return os.pathsep.join((class_path(), *more))


def tools_jar() -> Path:
    """The jar of the command-line tools alone."""
    return libs() / f"kafka-tools-{KAFKA_VERSION}.jar"


def _command(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise JarsUnavailable(f"the command `{name}` is not installed")
    return found


def _download(mvn: str, target: Path, artifacts: tuple[tuple[str, str, str], ...]) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE_DIR) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(_pom(artifacts), encoding="utf-8")
        fresh = Path(scratch, "libs")
        command = [
            mvn, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={fresh}",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise JarsUnavailable(f"Maven gave no answer in {MAVEN_TIMEOUT_S} s") from late
        if done.returncode != 0 or not list(fresh.glob("kafka-clients-*.jar")):
            tail = (done.stdout + done.stderr)[-2000:]
            raise JarsUnavailable(f"Maven could not fetch Apache Kafka {KAFKA_VERSION}: {tail}")
        (fresh / _COMPLETE).touch()
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)


def _pom(artifacts: tuple[tuple[str, str, str], ...]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>barnabas.compat</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
