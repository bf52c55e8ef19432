"""A real Spark, local, with its own Kafka connector from Maven Central.

The pair is pinned: PySpark 4.0.0 and spark-sql-kafka-0-10_2.13:4.0.0, resolved by Spark itself
through `spark.jars.packages`, exactly as a user's job would do it.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from testkit.require import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def pytest_configure(config: pytest.Config) -> None:
    # PySpark leaves sockets of its gateway to the collector, and calls what Python has deprecated.
    for text in ("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"):
        config.addinivalue_line("filterwarnings", text)
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests here: it takes several seconds to start."""
    require(shutil.which("java"), "Java (Spark runs in a JVM)")
    try:
        import pyspark
    except ImportError:
        require(False, "PySpark: pip install 'barnabas[spark]'")
    require(pyspark.__version__ == "4.0.0", f"PySpark 4.0.0, not {pyspark.__version__}")
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("barnabas-compat")
            .config("spark.jars.packages", CONNECTOR)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(home / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
    yield session
    session.stop()
