"""Archives of loaded classes for the JVMs of tests (class data sharing): half of their start.

Apache Kafka and Spark run once, and what they loaded is kept where `testkit.quick_jvm` looks for
it. A JVM of other classes, or of another Java, goes on without them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from testkit import jars
from testkit.brokers.nodes import ApacheKafka
from testkit.quick_jvm import CACHE, KAFKA_CLASSES, QUICK_JVM, SPARK_CLASSES
from testkit.wait import eventually

_TIMEOUT_S = 300


def kafka() -> None:
    """Archives what a node of Apache Kafka loads until it has started and stopped."""

    def run(options: tuple[str, ...], folder: Path) -> None:
        with ApacheKafka(folder, java_options=("-Xmx512M", *options)) as broker:
            os.kill(broker.pid, signal.SIGTERM)
            eventually(
                lambda: broker.exit_code is not None,
                timeout_s=_TIMEOUT_S, every_s=0.2, what="Apache Kafka writes its archive",
            )  # fmt: skip

    _archive(KAFKA_CLASSES, run)


def spark() -> None:
    """Archives what Spark loads for a small batch; needs PySpark."""

    def run(options: tuple[str, ...], folder: Path) -> None:
        script = Path(__file__).with_name("small_spark_job.py")
        env = {
            **os.environ, "SPARK_SUBMIT_OPTS": " ".join(options), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        subprocess.run(
            [sys.executable, str(script), str(folder)],
            cwd=folder, env=env, check=True, timeout=_TIMEOUT_S,
        )  # fmt: skip

    _archive(SPARK_CLASSES, run)


def _archive(target: Path, run: Callable[[tuple[str, ...], Path], None]) -> None:
    if target.exists():
        return
    jars.java()
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        fresh = Path(folder, "fresh.jsa")
        run((*QUICK_JVM, f"-XX:ArchiveClassesAtExit={fresh}", "-Xlog:disable"), Path(folder))
        fresh.rename(target)
