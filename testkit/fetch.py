"""Fetches what tests would fetch when they first need it: `python -m testkit.fetch`, for CI.

Apache Kafka's jars and the base of the image.
"""

from __future__ import annotations

from testkit import jars
from testkit.delivery import engine


def main() -> None:
    jars.libs()
    jars.streams_class_path()
    jars.connect_class_path()
    engine.base()


if __name__ == "__main__":
    main()
