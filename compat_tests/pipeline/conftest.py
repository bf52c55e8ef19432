"""Running the pipeline's commands as a user would, and one Spark session to look at the results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat_tests.support.require import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 240
SMALL_SPARK = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")

Pipeline = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    # PySpark leaves sockets of its gateway to the collector, and calls what Python has deprecated.
    for text in ("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"):
        config.addinivalue_line("filterwarnings", text)
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


def command_line(*arguments: object) -> list[str]:
    """`barnabas pipeline ...` from the checkout, by the file that spark-submit takes."""
    script = str(ROOT / "pipeline" / "__main__.py")
    return [sys.executable, script, *(str(argument) for argument in arguments)]


def environment(**changes: str) -> dict[str, str]:
    """Nothing of the checkout is on Spark's path: what executors need must travel in the job."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, **changes}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """Runs a command in an empty directory; the result has returncode, stdout and stderr."""
    needs_spark()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(
        *arguments: object, env: dict[str, str] | None = None, spark: bool = True
    ) -> subprocess.CompletedProcess[str]:
        flags = SMALL_SPARK if spark else ()
        return subprocess.run(
            command_line(*arguments, *flags),
            cwd=elsewhere,
            env=env or environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run


def needs_spark() -> None:
    require(shutil.which("java"), "Java (Spark runs in a JVM)")
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as missing:
        require(False, f"{missing}: pip install 'barnabas[spark]'")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that tests look with; the commands under test start their own."""
    needs_spark()
    from pyspark.sql import SparkSession

    from pipeline.session import connector

    home = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("pipeline-tests")
            .config("spark.jars.packages", connector())
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(home / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
    yield session
    session.stop()
