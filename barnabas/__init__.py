"""Barnabas: a Kafka broker for tests, laptops and small clusters.

    import barnabas

    with barnabas.Broker() as broker:
        broker.bootstrap_servers        # "127.0.0.1:54321": give it to any Kafka client

    with barnabas.Cluster(nodes=3) as cluster:
        cluster.kill(2)                 # and what does your application do now?

Brokers run as child processes, so nothing of them is imported into yours. From a shell:
`barnabas start`, `barnabas cluster start`; from pytest: the fixtures `barnabas_broker`,
`barnabas_cluster` and `barnabas_shared_broker`.
In a Spark session: `barnabas.register_source(spark)`. For DuckDB, pandas and polars:
`barnabas.archive_files("lake")`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for true; importing typing would slow the start
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from barnabas.broker import Broker, BrokerError
    from barnabas.cluster import Cluster
    from barnabas.secured import Acl

__all__ = ["Acl", "Broker", "BrokerError", "Cluster", "archive_files", "register_source"]


def register_source(spark: SparkSession) -> None:
    """Make `spark.read.format("barnabas")` read a broker's log directory in this session.

    Options: docs/pipeline.md. Raises ImportError when PySpark is older than 4, or NumPy or PyArrow
    is missing (`pip install 'barnabas[spark]'`).
    """
    from barnabas.spark_source import register_source as register

    register(spark)


def archive_files(directory: str) -> list[str]:
    """The data files that make up an archive of Parquet or ORC (`barnabas pipeline archive`) now,
    for programs that would list them themselves: docs/pipeline.md.

    Raises ValueError for a directory that is no such archive.
    """
    from barnabas.spark_source import archive_files as files

    return files(directory)


def __getattr__(name: str) -> object:
    """The classes and `__version__`, looked up only when asked: they are slow to import, and every
    command begins here."""
    if name in ("Broker", "BrokerError"):
        from barnabas import broker

        return getattr(broker, name)
    if name == "Cluster":
        from barnabas.cluster import Cluster

        return Cluster
    if name == "Acl":
        from barnabas.secured import Acl

        return Acl
    if name == "__version__":
        from importlib.metadata import version

        return version("barnabas")
    raise AttributeError(f"module 'barnabas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
