"""Spark with its Kafka connector, on a laptop or an existing cluster, from one place.

How:
- The master is Spark's business: `--master`, else spark-defaults.conf or spark-submit, else Spark's
  own default, local[*]. Nothing a person configured is overridden, but two things a job of ours
  relies on: the session's time zone is UTC and timestamps in Parquet are INT64 micros.
- The connector is resolved by Spark (`spark.jars.packages`), its version that of PySpark and its
  Scala that of Spark's own jars, joined to packages the person configured; so is what a table
  format needs (`table_formats`), when one is asked for. Under spark-submit the JVM already runs:
  there packages come with --packages, and their absence is said so.
- Spark's JVM writes to a log file, not into the terminal: the file is where `errors.explain` looks,
  it is named when something unknown goes wrong, and removed when all went well; one that a killed
  process left, which told nobody of it, by the next session.

Duties of the caller: `with open_session(...) as job:`; only one at a time in a process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.errors import PipelineError, UnexplainedError, explain, not_installed, short
from pipeline.progress import Progress, rate
from pipeline.spark.table_formats import TABLE_FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_PACKAGES = "spark.jars.packages"
_LISTS = (_PACKAGES, "spark.sql.extensions")
"""Settings that ours is added to, when a person has said something."""
_LOG = "barnabas-spark-"
_LOG_IN_USE = f"{_LOG}of-"
"""How a log is called until somebody is told to read it; its process has it locked."""
_LOG_TAIL_BYTES = 200_000
_POLL_S = 0.5
_REMAINS = Path("artifacts")
"""Spark 4.0 makes this folder where its JVM was started, and leaves it there, empty."""
_PINNED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
# Ours unless the person says otherwise: quiet, and progress that moves.
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.heartbeatInterval": "2s",
    "spark.log.level": "ERROR",
}


@dataclass(slots=True)
class Job:
    """An open Spark session and what a command needs around it."""

    spark: SparkSession
    progress: Progress

    @property
    def jvm(self) -> Any:
        """The driver's JVM through Py4J; its types are not known to Python."""
        return self.spark._jvm

    def parallelism(self) -> int:
        return int(self.spark.sparkContext.defaultParallelism)


def connector() -> str:
    """Coordinates of the connector that fits the installed PySpark."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_{_scala_version()}:{pyspark.__version__}"


class _Package(NamedTuple):
    """What Spark is to fetch, and to be told of it."""

    what: str
    coordinates: str
    provider: str
    """A class of it."""
    settings: Mapping[str, str] = {}
    defaults: Mapping[str, str] = {}

    @property
    def artifact(self) -> str:
        return self.coordinates.split(":")[1]


def _packages(needs_kafka: bool, formats: Collection[str]) -> list[_Package]:
    kafka = _Package("Kafka connector", connector(), _KAFKA_PROVIDER)
    tables = [
        _Package(
            f"support of {name}",
            one.coordinates(_scala_version()),
            one.provider,
            one.settings,
            one.defaults,
        )
        for name, one in TABLE_FORMATS.items()
        if name in formats
    ]
    return [kafka, *tables] if needs_kafka else tables


@contextmanager
def open_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    needs_kafka: bool = True,
    formats: Collection[str] = (),
) -> Iterator[Job]:
    """A session for one command, with what these `formats` of archives need.

    Raises PipelineError when Spark cannot start.

    Exceptions of the body with a known cause become PipelineError too; KeyboardInterrupt (SIGINT,
    and SIGTERM for the time of the session) passes after Spark was stopped; also where the signal
    went to the JVM, too, as service managers and timeout(1) send it.
    """
    _require_pyspark()
    packages = _packages(needs_kafka, formats)
    lock, log = _new_log()
    job: Job | None = None
    keeps_log = False
    progress = Progress()
    remains = _REMAINS if not _REMAINS.exists() else None
    with _sigterm_is_interrupt() as heard, _quiet_interrupts():
        try:
            progress.show("starting Spark ...")
            job = Job(_start(name, master, dict(conf or {}), packages, log), progress)
            progress.clear()
            yield job
        except (PipelineError, KeyboardInterrupt):
            raise
        except Exception as error:
            if heard and _has_no_jvm(error):
                raise KeyboardInterrupt(*heard) from None
            with suppress(OSError):
                log = log.rename(log.with_name(log.name.replace(_LOG_IN_USE, _LOG)))
            problem = translated(error, log, packages)
            keeps_log = isinstance(problem, UnexplainedError)
            raise problem from error
        finally:
            progress.clear()
            _stop(job)
            if remains is not None:
                with suppress(OSError):
                    remains.rmdir()
            if not keeps_log:
                log.unlink(missing_ok=True)
            os.close(lock)


def _new_log() -> tuple[int, Path]:
    """A file for Spark's log, and the descriptor that locks it. Those in use that nobody has locked
    are of killed processes, and go."""
    for left in Path(tempfile.gettempdir()).glob(f"{_LOG_IN_USE}*.log"):
        with suppress(OSError), open(left, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
    lock, name = tempfile.mkstemp(prefix=_LOG_IN_USE, suffix=".log")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock, Path(name)


def translated(error: Exception, log: Path, packages: Sequence[_Package] = ()) -> PipelineError:
    """An exception of Spark's as one line; UnexplainedError when Spark's log must be read."""
    wanted = ",".join(one.coordinates for one in packages) or connector()
    known = explain(error, _tail(log), wanted)
    if known is not None:
        return PipelineError(known)
    _append_traceback(log, error)
    return UnexplainedError(f"{short(error)}; Spark's log is in {log}")


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise not_installed("PySpark 4") from None
    for package in ("pyarrow", "pandas"):
        try:
            __import__(package)
        except ImportError:
            raise not_installed(package) from None
    java_home = os.environ.get("JAVA_HOME")
    java = Path(java_home, "bin", "java") if java_home else None
    if java is not None and not java.exists():
        raise PipelineError(f"JAVA_HOME is {java_home}, but there is no bin/java in it; correct it")
    if java is None and shutil.which("java") is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise PipelineError(
            "there is no Java; install a Java runtime, 17 or newer (Debian:"
            " openjdk-17-jre-headless), or set JAVA_HOME"
        )


def _start(
    name: str, master: str | None, conf: dict[str, str], packages: list[_Package], log: Path
) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    configured = _configured()
    if under_submit:
        SparkContext._ensure_initialized()
        configured |= dict(SparkConf().getAll())
    settings = _settings(configured, conf, master, packages)
    if under_submit:
        settings.pop(_PACKAGES, None)  # its JVM has what it was given
    if not under_submit and settings.get("spark.master", "local").startswith("local"):
        # A laptop's host name often leads nowhere; a local Spark talks to itself only. The
        # executors of a cluster have a Python of their own, which PySpark's settings name.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items())).setAppName(name)
    if SparkContext._gateway is None and not under_submit:
        with open(log, "ab") as sink:
            how: dict[str, Any] = {"stdout": sink, "stderr": sink}
            if not os.access(".", os.W_OK):
                how["cwd"] = tempfile.gettempdir()  # it could not make its folder here
            gateway = launch_gateway(spark_conf, how)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for one in packages:
        if not _has_class(spark, one.provider):
            spark.stop()
            raise PipelineError(
                f"this Spark has no {one.what}; with spark-submit add --packages "
                + ",".join(package.coordinates for package in packages)
            )
    return spark


def _settings(
    configured: Mapping[str, str],
    conf: Mapping[str, str],
    master: str | None,
    packages: Sequence[_Package],
) -> dict[str, str]:
    """All we set: what the person's flags say, what a job relies on, and defaults of ours."""
    defaults = dict(_DEFAULTS)
    for one in packages:
        defaults.update(one.defaults)
    settings = {key: value for key, value in defaults.items() if key not in configured}
    settings.update(_PINNED)
    settings.update(conf)
    master = master or settings.get("spark.master") or configured.get("spark.master")
    if master is not None:
        settings["spark.master"] = master
    for one in packages:
        for key, value in {**one.settings, _PACKAGES: one.coordinates}.items():
            present = settings.get(key) or configured.get(key, "")
            known = one.artifact if key == _PACKAGES else value
            if key not in _LISTS or not present:
                settings[key] = value
            else:
                settings[key] = present if known in present else f"{present},{value}"
    return settings


def has_package(spark: SparkSession, table_format: str) -> bool:
    """Whether this Spark was given what that format of archives needs."""
    return _has_class(spark, TABLE_FORMATS[table_format].provider)


def _has_class(spark: SparkSession, name: str) -> bool:
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, False)
    except Exception as error:
        return "ClassNotFound" not in str(error)
    return True


def _configured() -> dict[str, str]:
    """What spark-defaults.conf of this machine and PYSPARK_SUBMIT_ARGS say; {} without either."""
    home = os.environ.get("SPARK_HOME", "")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else "")
    found: dict[str, str] = {}
    with suppress(OSError):
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8") if folder else ""
        lines = (re.match(r"\s*([^#\s=]+)[\s=]+(.*\S)", line) for line in text.splitlines())
        found = {match.group(1): match.group(2) for match in lines if match}
    submitted = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for flag, value in pairwise(submitted):
        if flag == "--master":
            found["spark.master"] = value
        elif flag == "--packages":
            found[_PACKAGES] = value
        elif flag == "--conf" and "=" in value:
            key, _, setting = value.partition("=")
            found[key] = setting
    return found


def _scala_version() -> str:
    """2.13 for every PySpark 4 there is; read from its jars, so that a later one is right too."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    for jar in Path(home, "jars").glob("spark-sql_*.jar"):
        return jar.name.split("_")[1].split("-")[0]
    return "2.13"


def _stop(job: Job | None) -> None:
    """Stop Spark and its JVM: a later session in this process must not meet half of this one."""
    from pyspark import SparkContext

    with suppress(Exception):
        if job is not None:
            job.spark.stop()
    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    with suppress(Exception):
        process.stdin.close()  # what the JVM waits for
        process.wait(30)
    SparkContext._gateway = None
    SparkContext._jvm = None


def _tail(log: Path) -> str:
    with suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
    return ""


def _append_traceback(log: Path, error: BaseException) -> None:
    import traceback

    with suppress(OSError), open(log, "a", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)


def _has_no_jvm(error: Exception) -> bool:
    """Whether it is what Py4J raises when the JVM has gone."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    return isinstance(error, ConnectionError | EOFError | Py4JNetworkError)


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Py4J prints a traceback when an interrupt meets one of its calls, and then passes it on."""

    def is_told(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("KeyboardInterrupt while sending command")

    logging.getLogger().addFilter(is_told)
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_told)


@contextmanager
def _sigterm_is_interrupt() -> Iterator[list[int]]:
    """An orderly stop, whoever asks; the list has the signal once it was heard. PySpark has its own
    handler for SIGINT, which raises too, and its JVM does not hear that one."""
    heard: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        heard[:] = [number]
        raise KeyboardInterrupt(number)

    before: Callable[[int, FrameType | None], Any] | int | None
    try:
        before = signal.signal(signal.SIGTERM, on_signal)
    except ValueError:  # not the main thread: the host process keeps its own
        yield heard
        return
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, before)


def run_watched(job: Job, action: Callable[[], Any], text: Callable[[float], str]) -> Any:
    """Run Spark's work in a thread, show `text(seconds)` from another, and hear Ctrl-C in this one.

    This thread makes no call to the JVM meanwhile: an interrupt in the middle of one would leave
    its answer in the connection, to be taken for that of the next call.
    """
    outcome: list[Any] = []
    problem: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            # Iceberg asks for the session of the thread; each thread of ours has one of the JVM.
            job.jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
                job.spark._jsparkSession
            )
            outcome.append(action())
        except BaseException as error:
            problem.append(error)
        ended.set()

    def tell() -> None:
        started = time.monotonic()
        while not ended.wait(_POLL_S):
            with suppress(Exception):
                job.progress.show(text(time.monotonic() - started))

    threads = [threading.Thread(target=one, daemon=True) for one in (work, tell)]
    for thread in threads:
        thread.start()
    try:
        while not ended.wait(_POLL_S):
            pass
    except KeyboardInterrupt:
        ended.set()
        with suppress(Exception):
            job.spark.sparkContext.cancelAllJobs()
        raise
    finally:
        threads[1].join(5)
        job.progress.clear()
    if problem:
        raise problem[0]
    return outcome[0]


def stages(job: Job) -> Callable[[float], str]:
    """For `run_watched`: how far the stages are, '1,234,567 rows  9,876 rows/s  3/40 tasks'.

    Between two stages the last text stays.
    """
    last = "planning"

    def text(seconds: float) -> str:
        nonlocal last
        done = total = rows = 0
        for stage in _active_stages(job):
            done += stage.numCompleteTasks()
            total += stage.numTasks()
            rows += _records(stage)
        if total:
            counted = f"{rows:,} rows  {rate(rows, seconds)}  " if rows else ""
            last = f"{counted}{done}/{total} tasks"
        return f"{last}  {seconds:.0f} s"

    return text


def records_read(job: Job) -> int:
    """How many the stages that run have read so far."""
    return sum(_records(stage) for stage in _active_stages(job))


def _records(stage: Any) -> int:
    """Of a stage; sources that do not count what they read (Kafka's) are known by what was written,
    task by task."""
    return max(int(stage.inputRecords()), int(stage.outputRecords()))


def _active_stages(job: Job) -> list[Any]:
    context: Any = job.spark.sparkContext
    active = context._jsc.sc().statusStore().activeStages()
    return [active.apply(index) for index in range(active.size())]


def signal_of(stop: KeyboardInterrupt) -> int:
    """The number of the signal behind an interrupt: SIGTERM's is in it, SIGINT's is not."""
    number = stop.args[0] if stop.args else None
    return number if isinstance(number, int) else int(signal.SIGINT)
