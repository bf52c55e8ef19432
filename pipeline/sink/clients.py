"""Registers (see `registers`) of two client libraries: confluent-kafka, and kafka-python.

confluent-kafka is librdkafka: several times faster, and compiled, so executors must have it.
kafka-python is pure Python: where it is missing too, the copy is imported that travels in the job
(`carry`), from a file that is last on the path and so hides no module of the executors' own.

Travels to executors by value; the clients are imported in the task.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from .registers import Connect, Fenced, Mark, Register, Row, SinkError
from .settings import TIMEOUT_MS, Settings, in_python
from .tokens import Token

CARRIED = "barnabas-kafka-python.zip"
MARKS_TOPIC = "__consumer_offsets"
"""The one topic that is there as long as offsets are, whoever deletes what."""
WAIT_S = 120.0
"""How long a broker, or all of a transaction's coordinators, may be gone."""
_FENCED = {47, 90, -144}
_ENDED = {48, 49}
"""What a producer hears, too, whose transaction the broker has ended."""
_RETRIABLE = {14, 15, 16, 51, 88, -185, -195, -180}
"""Loading, gone or moved coordinators, transactions that end, time-outs of librdkafka."""
_FATAL = -150
_CONSEQUENCES = {_FATAL, -151, -152}
"""What librdkafka says of rows that a failed transaction takes with it."""
_NULL = object()
"""A null value for kafka-python, which refuses None beside a key of None."""
_STEPS = {
    3: "topic {topic} does not exist; create it (`barnabas topic create`), or correct the option"
    " or the column topic",
    10: "the topic refuses a batch as too large; raise its max.message.bytes, or, if no row is that"
    " large, lower kafka.batch.size below it",
    17: "the name of a topic is not legal, or it may not be written",
    29: "this user may not write the topic; allow WRITE on it, and READ on " + MARKS_TOPIC
    + ", under whose name the sink's marks are committed",
    30: "this user may not use the sink's groups; allow READ on groups that begin with barnabas-",
    32: "the topic refuses a timestamp (message.timestamp.before.max.ms, .after.max.ms)",
    35: "the broker is too old: it has no transactions (Apache Kafka has them since 0.11)",
    48: "the broker ended the transaction; look at its log",
    50: "the broker allows no such transaction time-out; lower the option kafka." + TIMEOUT_MS
    + " below its transaction.max.timeout.ms",
    53: "the broker gives no transactions: it has none, or this user lacks WRITE on transactional"
    " ids that begin with barnabas-",
    67: "the broker takes no more transactional ids now; try again",
    87: "the topic refuses a row (a compacted topic wants keys)",
    -185: "no broker answers; check kafka.bootstrap.servers, and that the addresses that brokers"
    " advertise can be reached from the executors",
    -190: "partition {partition} of topic {topic} does not exist; correct the column partition",
}  # fmt: skip
_STEPS |= {-187: _STEPS[-185], -195: _STEPS[-185], -188: _STEPS[3], -192: _STEPS[-185]}


def connector(settings: Settings) -> Connect:
    """Makes registers with the client that was asked for, or is there. Raises SinkError."""
    if settings.client != "kafka-python":
        try:
            import confluent_kafka  # noqa: F401

            return lambda name, group="": ConfluentRegister(settings, name, group)
        except ImportError:
            if settings.client == "confluent":
                raise SinkError(
                    "the executors' Python has no confluent_kafka; pip install confluent-kafka"
                    " there, or leave out the option client"
                ) from None
    _import_kafka_python()
    return lambda name, group="": PythonRegister(settings, name, group)


def _import_kafka_python() -> None:
    try:
        import kafka
    except ImportError:
        from pyspark import SparkFiles

        sys.path.append(SparkFiles.get(CARRIED))
        try:
            import kafka  # noqa: F401
        except ImportError:
            raise SinkError(
                "the executors' Python has no Kafka client, and none could travel with this job"
                " (Spark Connect); pip install confluent-kafka there"
            ) from None


class _ClientRegister(Register):
    """What both have in common: the id, and what an error means."""

    def __init__(self, settings: Settings, name: str, group: str = "") -> None:
        self._settings = settings
        self._name = name
        self._group = group or name
        self._begun_at: float | None = None
        self._is_stuck = False

    def begin(self) -> None:
        self._begun_at = time.monotonic()
        self._begin()

    @abstractmethod
    def _begin(self) -> None: ...

    def _heard(self, call: Callable[[], Any]) -> None:
        """Call what may never return: given up after a while, with the thread that waits in it.

        kafka-python's commit waits for a broker without an end; librdkafka 2.16 loses its answer
        when a coordinator died since the claim (send_offsets_to_transaction: AddOffsetsToTxn is
        answered, and no TxnOffsetCommit follows)."""
        ended: list[Exception | None] = []

        def run() -> None:
            try:
                call()
            except Exception as problem:
                ended.append(problem)
            else:
                ended.append(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(WAIT_S + 5)
        if not ended:
            self._is_stuck = True
            raise self._problem(-185, "the client never heard whether its offsets are committed")
        if ended[0] is not None:
            raise ended[0]

    def _problem(self, code: int, text: str, topic: str = "", partition: int = -1) -> Exception:
        """What an error of the client is for us: Fenced, or a SinkError with the next step."""
        if code in _FENCED | _ENDED:
            limit = self._settings.timeout_ms / 1000
            if self._begun_at is not None and time.monotonic() - self._begun_at >= limit:
                return SinkError(
                    f"a task wrote for longer than {limit:.0f} s, and the broker aborted its"
                    f" transaction; raise the option kafka.{TIMEOUT_MS} (broker:"
                    " transaction.max.timeout.ms), use more slots, or make batches smaller"
                )
        if code in _FENCED:
            return Fenced(text)
        step = _STEPS.get(code)
        if step is None:
            return SinkError(f"the broker at {self._settings.bootstrap}: {text} (error {code})")
        named = step.format(topic=topic or "(see the rows)", partition=partition)
        return SinkError(f"{named} [{self._settings.bootstrap}: {text}]")


class ConfluentRegister(_ClientRegister):
    """librdkafka through confluent-kafka."""

    def __init__(self, settings: Settings, name: str, group: str = "") -> None:
        import confluent_kafka

        super().__init__(settings, name, group)
        self._kafka: Any = confluent_kafka
        own = {"bootstrap.servers": settings.bootstrap, "log_level": 2}
        common: dict[str, Any] = {**settings.properties, **own}
        if settings.token is not None:
            settings.token()  # librdkafka would wait for ever for one that cannot be read
            common["oauth_cb"] = settings.token.with_expiry
        try:
            self._consumer = self._kafka.Consumer(
                {**_without_producer(common), "group.id": self._group, "enable.auto.commit": False}
            )
        except self._kafka.KafkaException as error:
            raise SinkError(f"a kafka. option is not right: {error.args[0].str()}") from None
        self._common = common
        self._producer: Any = None
        self._produce: Any = None
        self._refused: Any = None
        self._fatal: Any = None
        self._has_trouble = False
        self._known: set[str] = set()

    def look(self) -> Mark | None:
        asked = [self._kafka.TopicPartition(MARKS_TOPIC, 0)]
        found = self._repeat(lambda left: self._consumer.committed(asked, left))[0]
        if found.error is not None:
            raise self._problem(found.error.code(), found.error.str(), MARKS_TOPIC)
        return None if found.offset < 0 else Mark(found.offset, found.metadata or "")

    def claim(self) -> None:
        config = {
            "linger.ms": 20,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,  # of the executor's memory
            **self._common,
            "transactional.id": self._name,
            TIMEOUT_MS: self._settings.timeout_ms,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
            "error_cb": self._troubled,
        }
        try:
            self._producer = self._kafka.Producer(config)
        except self._kafka.KafkaException as error:
            raise SinkError(f"a kafka. option is not right: {error.args[0].str()}") from None
        self._repeat(lambda left: self._producer.init_transactions(left))
        self._produce = self._producer.produce

    def _begin(self) -> None:
        self._repeat(lambda _: self._producer.begin_transaction())

    def send(self, row: Row) -> None:
        topic, partition, key, value, headers, timestamp = row
        if topic not in self._known:
            self._require(topic)
        where = -1 if partition is None else partition
        if timestamp == 0:
            raise SinkError(
                "librdkafka cannot write the timestamp 0 (1970-01-01T00:00:00Z): it takes it for"
                " now; write with kafka-python"
            )
        while True:
            try:
                # By position: words, and a callback for each row, would double what a row costs.
                self._produce(topic, value, key, where, None, None, timestamp or 0, headers)
                return
            except BufferError:
                self._serve(0.5)
            except self._kafka.KafkaException as error:
                raise self._of(error.args[0], topic, where) from None
            if self._refused is not None:
                raise self._of(*self._refused)

    def has_trouble(self) -> bool:
        deadline = time.monotonic() + WAIT_S
        self._serve(0)
        while len(self._producer) and self._refused is None and self._fatal is None:
            if time.monotonic() > deadline:
                raise self._problem(-185, "rows were not stored in time")
            self._serve(0.05)
        return self._has_trouble

    def commit(self, mark: Mark) -> None:
        offset = self._kafka.TopicPartition(MARKS_TOPIC, 0, mark.offset, metadata=mark.metadata)
        group = self._consumer.consumer_group_metadata()
        send = partial(self._producer.send_offsets_to_transaction, [offset], group)
        self._heard(partial(self._repeat, send))
        self._heard(partial(self._repeat, self._producer.commit_transaction))

    def abort(self) -> None:
        with suppress(Exception):
            if not self._is_stuck:
                self._producer.abort_transaction(5)

    def close(self) -> None:
        if self._producer is not None and not self._is_stuck:
            with suppress(Exception):
                self._producer.purge()
        self._consumer.close()

    def _troubled(self, error: Any) -> None:
        """A connection was lost, or worse."""
        self._has_trouble = True
        if error.fatal():
            self._fatal = error

    def _require(self, topic: str) -> None:
        """Raise SinkError for a topic that is not there: librdkafka would wait for it, or make the
        broker create it."""
        found = self._repeat(lambda left: self._consumer.list_topics(topic, left)).topics[topic]
        if found.error is not None:
            raise self._of(found.error, topic)
        self._known.add(topic)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._refused is None and error.code() not in _CONSEQUENCES:
            self._refused = (error, message.topic(), message.partition())

    def _serve(self, seconds: float) -> None:
        """Let callbacks run; a fatal error is raised there, with its cause."""
        try:
            self._producer.poll(seconds)
        except self._kafka.KafkaException as problem:
            self._fatal = problem.args[0]

    def _repeat(self, call: Callable[[float], Any]) -> Any:
        """Call with the seconds that are left until it is answered for good."""
        deadline = time.monotonic() + WAIT_S
        while True:
            left = deadline - time.monotonic()
            try:
                return call(max(0.1, left))
            except self._kafka.KafkaException as problem:
                error = problem.args[0]
                again = error.retriable() or (error.code() in _RETRIABLE and not error.fatal())
                if not again or error.txn_requires_abort() or left <= 0:
                    raise self._of(error) from None
            time.sleep(min(0.1, max(0.0, left)))

    def _of(self, error: Any, topic: str = "", partition: int = -1) -> Exception:
        """What it means. A row that was refused, or a fatal error, is why later calls fail: those
        only say that they do."""
        if self._producer is not None:
            self._serve(0)
        if self._refused is not None:
            error, topic, partition = self._refused
        elif error.code() == _FATAL:
            error = self._fatal or error
        return self._problem(error.code(), error.str(), topic, partition)


def _without_producer(common: dict[str, Any]) -> dict[str, Any]:
    """What a consumer knows: a compression or a linger time is a producer's, and would be told."""
    words = ("compression.", "linger.", "batch.", "queue.buffering.", "message.", "delivery.")
    return {key: value for key, value in common.items() if not key.startswith(words)}


class PythonRegister(_ClientRegister):
    """kafka-python."""

    def __init__(self, settings: Settings, name: str, group: str = "") -> None:
        import kafka
        from kafka import errors

        super().__init__(settings, name, group)
        self._kafka: Any = kafka
        self._errors: Any = errors
        self._common = {
            "bootstrap_servers": settings.bootstrap.split(","),
            **in_python(settings.properties),
        }
        if settings.token is not None:
            self._common["sasl_oauth_token_provider"] = _provider(settings.token)
        self._where = kafka.TopicPartition(MARKS_TOPIC, 0)
        self._producer: Any = None
        self._refused: Exception | None = None
        self._partitions: dict[str, int] = {}
        known = kafka.KafkaConsumer.DEFAULT_CONFIG
        self._consumer = self._made(
            kafka.KafkaConsumer,
            {key: value for key, value in self._common.items() if key in known},
            group_id=self._group, enable_auto_commit=False, isolation_level="read_committed",
            allow_auto_create_topics=False, bootstrap_timeout_ms=int(WAIT_S * 1000),
        )  # fmt: skip

    def look(self) -> Mark | None:
        found = self._repeat(lambda: self._consumer.committed(self._where, metadata=True))
        return None if found is None else Mark(found.offset, found.metadata)

    def claim(self) -> None:
        self._producer = self._made(
            self._kafka.KafkaProducer,
            {"linger_ms": 20, "batch_size": 256 * 1024, "max_request_size": 2**30, **self._common},
            transactional_id=self._name, transaction_timeout_ms=self._settings.timeout_ms,
            max_block_ms=int(WAIT_S * 1000), bootstrap_timeout_ms=int(WAIT_S * 1000),
            value_serializer=lambda value: None if value is _NULL else value,
        )  # fmt: skip
        self._repeat(self._producer.init_transactions)

    def _begin(self) -> None:
        self._repeat(self._producer.begin_transaction)

    def send(self, row: Row) -> None:
        topic, partition, key, value, headers, timestamp = row
        if topic not in self._partitions:
            self._require(topic)
        if partition is not None and not 0 <= partition < self._partitions[topic]:
            raise self._problem(-190, "unknown partition", topic, partition)
        if self._refused is not None:
            raise self._refused
        try:
            sent = self._producer.send(
                topic, _NULL if value is None else value, key, headers or [], partition,
                timestamp_ms=timestamp,
            )  # fmt: skip
        except self._errors.KafkaError as error:
            raise self._of(error, topic) from None
        except (TypeError, ValueError) as error:
            raise SinkError(
                f"kafka-python cannot write a row (null headers): {error};"
                " pip install confluent-kafka on the executors"
            ) from None
        sent.add_errback(self._failed)

    def commit(self, mark: Mark) -> None:
        marks = {self._where: self._kafka.OffsetAndMetadata(mark.offset, mark.metadata, -1)}
        producer = self._producer
        try:
            self._flush()
            self._heard(lambda: producer.send_offsets_to_transaction(marks, self._group))
            self._heard(producer.commit_transaction)
        except self._errors.KafkaError as error:
            raise self._refused or self._of(error) from None

    def abort(self) -> None:
        """Left to the next claim: kafka-python waits for the answer without an end."""

    def close(self) -> None:
        with suppress(Exception):
            if self._producer is not None:
                self._producer.close(timeout=1)
        with suppress(Exception):
            self._consumer.close()

    def _made(self, kind: Any, config: dict[str, Any], **ours: Any) -> Any:
        try:
            return kind(**config, **ours)
        except self._errors.KafkaError as error:
            raise self._of(error) from None
        except (AssertionError, TypeError, ValueError) as error:
            raise SinkError(f"a kafka. option is not right: {error}") from None

    def _require(self, topic: str) -> None:
        """Raise SinkError for a topic that is not there: a producer would create it."""
        found = self._repeat(lambda: self._consumer.partitions_for_topic(topic))
        if not found:
            raise self._problem(3, "unknown topic", topic)
        self._partitions[topic] = len(found)

    def _flush(self) -> None:
        """Until all rows are stored; raises for those that were given up: kafka-python would commit
        without them."""
        while True:
            with suppress(self._errors.UnknownError):  # a batch was split; not waited for its parts
                self._producer.flush(WAIT_S)
                break
        if self._refused is not None:
            raise self._refused

    def _failed(self, error: BaseException) -> None:
        if self._refused is None:
            self._refused = self._of(error)

    def _repeat(self, call: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return call()
            except self._errors.KafkaError as error:
                again = (
                    getattr(error, "retriable", False) or getattr(error, "errno", 0) in _RETRIABLE
                )
                if not again or time.monotonic() > deadline:
                    raise self._of(error) from None
            time.sleep(0.1)

    def _of(self, error: BaseException, topic: str = "") -> Exception:
        causes = [part for part in error.args if isinstance(part, self._errors.KafkaError)]
        if causes:  # "at least one previous request has failed", and with what
            error = causes[0]
        if isinstance(error, self._errors.KafkaTimeoutError):
            return self._problem(-185, str(error), topic)
        if isinstance(error, self._errors.IllegalStateError):
            # In mid transaction: the broker refused its epoch, and it is about to get another.
            return self._problem(47, str(error), topic)
        wrapped = re.search(r"\[Error (\d+)\]", str(error))  # as the cause of a plain KafkaError
        code = getattr(error, "errno", int(wrapped[1]) if wrapped else 0)
        return self._problem(code, str(error), topic)


def _provider(token: Token) -> Any:
    """What kafka-python asks for tokens."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

    return Provider()
