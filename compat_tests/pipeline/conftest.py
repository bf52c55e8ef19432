"""Running the pipeline's commands, and one Spark session for them and for a look at the results.

Two ways to run a command. `pipeline`: its own code with the flags of a user, in this process and in
the shared Spark session: most tests. `command`: a process and a JVM of its own, as a user's shell
starts it, ten seconds slower: where the process itself matters (signals, kills, what is missing).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.conftest import BROKERS_USED
from testkit import jars
from testkit.brokers.nodes import ApacheKafka, RunningBroker
from testkit.require import require

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
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """An empty directory to run commands in, which they must leave empty."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    yield folder
    assert not list(folder.iterdir()), "a command left files where it was called"


@pytest.fixture
def command(elsewhere: Path) -> Pipeline:
    """Runs a command as a process; the result has returncode, stdout and stderr."""
    needs_spark()

    def run(
        *arguments: object, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_line(*arguments, *SMALL_SPARK),
            cwd=elsewhere,
            env=env or environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture
def pipeline(
    spark: SparkSession, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    """Runs a command in this process and the shared session; the result is like a process's."""
    from pipeline.cli import run_command
    from pipeline.errors import PipelineError
    from pipeline.progress import Progress
    from pipeline.spark import session

    @contextmanager
    def shared_session(*_: Any, **__: Any) -> Iterator[session.Job]:
        try:
            yield session.Job(spark, Progress())
        except PipelineError:
            raise
        except Exception as error:
            raise session.translated(error, tmp_path / "spark.log") from error

    monkeypatch.setattr(session, "open_session", shared_session)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(elsewhere),
        ):
            try:
                code = run_command(words)
            except SystemExit as ended:
                code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

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
    """The session that tests look with, and that `pipeline` runs commands in."""
    needs_spark()
    from pipeline.spark.session import open_session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark") / "warehouse"),
    }
    formats = ("delta", "iceberg")
    with open_session("pipeline-tests", master="local[2]", conf=conf, formats=formats) as job:
        yield job.spark


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Apache Kafka with small segments, whatever --broker says: it has transactions."""
    try:
        jars.libs()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka: {missing}")
    broker = ApacheKafka(
        tmp_path_factory.mktemp("apache-kafka"),
        {
            "log.segment.bytes": 1048576,
            "log.retention.ms": -1,
            "log.index.interval.bytes": 1024,
            # An expired transaction is aborted at once, not within ten seconds.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        },
    )
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def sink_broker(
    make_broker: Callable[..., RunningBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """The broker under test, for the tests of the sink."""
    # An expired transaction is aborted at once, not within ten seconds.
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    broker = make_broker(tmp_path_factory.mktemp("sink-broker"), config)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def transactional_broker(
    make_broker: Callable[..., RunningBroker], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], RunningBroker]]:
    """Starts a broker of this test's own, which it may kill."""
    brokers: list[RunningBroker] = []
    request.node.stash[BROKERS_USED] = brokers

    def start() -> RunningBroker:
        directory = tmp_path / f"broker-{len(brokers)}"
        brokers.append(make_broker(directory, {"log.retention.ms": -1}))
        brokers[-1].start()
        return brokers[-1]

    yield start
    for one in brokers:
        one.kill()
