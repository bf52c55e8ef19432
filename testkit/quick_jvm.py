"""Options for JVMs that live for seconds, as those of tests do; never for one that is measured.

A third of such a JVM's CPU would go to the second compiler and to threads that collect garbage, and
half of the rest to loading classes, where `testkit.class_archives` has not been run before.
"""

from __future__ import annotations

from pathlib import Path

QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

CACHE = Path(__file__).resolve().parents[1] / ".cache"
KAFKA_CLASSES, SPARK_CLASSES = CACHE / "kafka.jsa", CACHE / "spark.jsa"


def _with(archive: Path) -> tuple[str, ...]:
    """QUICK_JVM with the archive, if it is there: of no file Java would not use its own either."""
    if not archive.exists():
        return QUICK_JVM
    return (*QUICK_JVM, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")


KAFKA_JVM = _with(KAFKA_CLASSES)
SPARK_JVM = _with(SPARK_CLASSES)
