"""Fetches what tests would fetch when they first need it: `python -m testkit.fetch`, for CI.

Apache Kafka's jars, the classes that JVMs of tests share, and the base of the image.
"""

from __future__ import annotations

import importlib.util

from testkit import class_archives, jars
from testkit.delivery import engine


def main() -> None:
    jars.libs()
    jars.streams_class_path()
    jars.connect_class_path()
    class_archives.kafka()
    if importlib.util.find_spec("pyspark"):
        class_archives.spark()
    engine.base()


if __name__ == "__main__":
    main()
