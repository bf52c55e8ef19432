"""Client quotas: kafka-configs sets them, and producers and consumers keep to them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer

from testkit.brokers.nodes import RunningBroker
from testkit.clients import raw
from testkit.clients.java_tools import Finished, JavaTools
from testkit.wait import eventually

RATE = 1_000_000
SECONDS = 10


@pytest.fixture
def limited(
    java_tools: JavaTools, fresh_broker: Callable[..., RunningBroker]
) -> tuple[RunningBroker, Callable[..., Finished]]:
    broker = fresh_broker({})

    def configs(*args: str) -> Finished:
        return java_tools.run(
            "ConfigCommand", "--bootstrap-server", broker.bootstrap_servers, *args, timeout_s=45
        )

    return broker, configs


def test_quotas_are_set_described_and_removed(
    limited: tuple[RunningBroker, Callable[..., Finished]],
) -> None:
    broker, configs = limited
    alice = ("--entity-type", "users", "--entity-name", "alice")
    everybody = ("--entity-type", "clients", "--entity-default")
    configs("--alter", *alice, "--add-config", "producer_byte_rate=1024,request_percentage=50").ok()
    configs("--alter", *everybody, "--add-config", "consumer_byte_rate=2048").ok()
    both = (*alice, "--entity-type", "clients", "--entity-name", "c")
    configs("--alter", *both, "--add-config", "consumer_byte_rate=4096").ok()

    def described(*entity: str) -> str:
        # Of users kafka-configs asks for SCRAM credentials, too, which a broker may not serve.
        return configs("--describe", *entity).text

    eventually(lambda: "producer_byte_rate=1024" in described(*alice))
    assert "request_percentage=50" in described(*alice)
    assert "consumer_byte_rate=2048" in described(*everybody)
    assert "consumer_byte_rate=4096" in described(*both)
    configs("--alter", *alice, "--delete-config", "producer_byte_rate").ok()
    eventually(lambda: "producer_byte_rate" not in described(*alice))
    bad = configs("--alter", *alice, "--add-config", "consumer_byte_rate=0")
    assert bad.code
    broker.restart()
    assert "request_percentage=50" in eventually(lambda: described(*alice))


def bytes_sent(broker: RunningBroker, seconds: float) -> float:
    """What one producer gets through in a second, on average."""
    producer = Producer({
        "bootstrap.servers": broker.bootstrap_servers, "client.id": "limited", "linger.ms": 5,
        "queue.buffering.max.kbytes": 256, "batch.size": 65_536,
    })  # fmt: skip
    done, value = 0, bytes(1_000)

    def delivered(error: object, _message: object) -> None:
        nonlocal done
        if error is None:  # what was purged in the end was not sent
            done += len(value)

    began = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        try:
            producer.produce("t", value, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    sent = done / (now - began)
    producer.purge()
    producer.flush(5)
    return sent


def bytes_read(broker: RunningBroker, seconds: float) -> float:
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap_servers, "client.id": "limited", "group.id": "g",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe(["t"])
    done, began = 0, 0.0
    try:
        while not began or time.monotonic() - began < seconds:
            for message in consumer.consume(500, 0.1):
                if not message.error():
                    began = began or time.monotonic()
                    done += len(message.value())
        return done / (time.monotonic() - began)
    finally:
        consumer.close()


def test_a_producer_and_a_consumer_keep_to_their_rates(
    limited: tuple[RunningBroker, Callable[..., Finished]],
) -> None:
    broker, configs = limited
    unlimited = bytes_sent(broker, 3)
    assert unlimited > 5 * RATE
    everybody = ("--entity-type", "clients", "--entity-name", "limited")
    rates = f"producer_byte_rate={RATE},consumer_byte_rate={RATE}"
    configs("--alter", *everybody, "--add-config", rates).ok()
    if broker.kind == "kafka":  # which lets ten seconds' worth through at once, at first
        bytes_sent(broker, 12)
        tolerance = 0.5
    else:
        tolerance = 0.05
    assert bytes_sent(broker, SECONDS) == pytest.approx(RATE, rel=tolerance)
    if broker.kind != "kafka":
        assert bytes_read(broker, SECONDS) == pytest.approx(RATE, rel=tolerance)
    configs("--alter", *everybody, "--delete-config", "producer_byte_rate").ok()
    eventually(lambda: bytes_sent(broker, 1) > 2 * RATE)


def test_topics_wait_for_the_mutation_quota_and_addresses_have_rates(
    limited: tuple[RunningBroker, Callable[..., Finished]], java_tools: JavaTools
) -> None:
    broker, configs = limited
    configs(
        "--alter", "--entity-type", "users", "--entity-default",
        "--add-config", "controller_mutation_rate=5",
    ).ok()  # fmt: skip
    ips = ("--entity-type", "ips", "--entity-name", "10.9.8.7")
    configs("--alter", *ips, "--add-config", "connection_creation_rate=7").ok()
    eventually(lambda: "connection_creation_rate=7" in configs("--describe", *ips).text)

    def create(name: str, partitions: int) -> Finished:
        return java_tools.run(
            "TopicCommand", "--bootstrap-server", broker.bootstrap_servers, "--create",
            "--topic", name, "--partitions", str(partitions), timeout_s=60,
        )  # fmt: skip

    create("big", 55 + 5 * 20).ok()  # twenty seconds more than the bucket holds
    refused = create("waits", 1)
    assert refused.code
    assert "quota has been exceeded" in refused.text
    assert eventually(lambda: not create("waits", 1).code, timeout_s=60)


def connections_served(broker: RunningBroker, seconds: float) -> float:
    """How many a second, on average, of eight who connect again as soon as they have an answer."""
    began, served = time.monotonic(), 0
    counting = threading.Lock()

    def connect_again_and_again() -> None:
        nonlocal served
        while time.monotonic() - began < seconds:
            try:
                with raw.connect(broker.bootstrap_servers, 30) as sock:
                    sock.sendall(raw.request(raw.API_VERSIONS, 0))
                    raw.read_frame(sock)
                    is_served = time.monotonic() - began < seconds
            except (ConnectionError, EOFError):
                is_served = False
            with counting:
                served += is_served

    threads = [threading.Thread(target=connect_again_and_again) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return served / seconds


def test_connections_of_an_address_keep_to_their_rate(
    limited: tuple[RunningBroker, Callable[..., Finished]],
) -> None:
    broker, configs = limited
    ips = ("--entity-type", "ips", "--entity-name", "127.0.0.1")
    configs("--alter", *ips, "--add-config", "connection_creation_rate=20").ok()
    if broker.kind == "kafka":  # which lets ten seconds' worth through at once, at first
        connections_served(broker, 12)
        tolerance = 0.5
    else:
        tolerance = 0.05
    assert connections_served(broker, 10) == pytest.approx(20, rel=tolerance)
