"""What a register's commit promises, tried with both clients and a broker that goes away."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from compat_tests.pipeline.records import create, held, read_all
from pipeline.sink.clients import connector
from pipeline.sink.registers import Fenced, Mark, Register, Row, SinkError
from pipeline.sink.settings import settings_of
from testkit.brokers.nodes import RunningBroker
from testkit.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = ["confluent", "kafka-python"]
TOPIC, GIVEN_UP_S = "kept", 3


def row(value: bytes) -> Row:
    return (TOPIC, 0, None, value, None, None)


def register(bootstrap: str, client: str) -> Register:
    """One that gives up a row that is not stored within some seconds (the default is minutes)."""
    given = {
        "bootstrap.servers": bootstrap,
        "delivery.timeout.ms": f"{GIVEN_UP_S * 1000}",
        "request.timeout.ms": f"{GIVEN_UP_S * 500}",
    }
    return connector(settings_of(given, client))("barnabas-clients-0")


def with_a_row(bootstrap: str, client: str) -> Register:
    """One with a transaction open, whose first row the broker has."""
    create(bootstrap, TOPIC, 1)
    made = register(bootstrap, client)
    made.claim()
    made.begin()
    made.send(row(b"stored"))
    eventually(lambda: held(bootstrap, TOPIC, 1, "read_uncommitted") == 1)
    return made


def values(bootstrap: str) -> list[bytes]:
    return [value for _, value, _, _ in read_all(bootstrap, TOPIC, 1)[0]]


@pytest.mark.parametrize("client", CLIENTS)
def test_rows_that_were_given_up_while_the_broker_was_gone_are_not_committed_without(
    transactional_broker: Callable[[], RunningBroker], client: str
) -> None:
    broker = transactional_broker()
    bootstrap = broker.bootstrap_servers
    first = with_a_row(bootstrap, client)
    broker.kill()
    first.send(row(b"given up"))
    time.sleep(GIVEN_UP_S + 1)
    broker.start()
    with suppress(SinkError, Fenced):
        first.commit(Mark(1, "all of them"))
    first.close()
    second = register(bootstrap, client)
    second.claim()
    found = second.look()
    second.close()
    assert (found, values(bootstrap)) == (None, [])


@pytest.mark.parametrize(("client", "knows_limit"), [("kafka-python", False), ("confluent", True)])
def test_batches_that_the_topic_would_refuse_as_too_large_are_split_or_never_made(
    transactional_broker: Callable[[], RunningBroker], client: str, knows_limit: bool
) -> None:
    """kafka-python splits those of 256 KiB that it makes; librdkafka does not."""
    bootstrap = transactional_broker().bootstrap_servers
    create(bootstrap, TOPIC, 1, **{"max.message.bytes": "20000"})
    settings = settings_of({"bootstrap.servers": bootstrap}, client)
    if knows_limit:  # as replay does
        settings = settings.for_topic(20_000)
    only = connector(settings)("barnabas-clients-0")
    only.claim()
    only.begin()
    wanted = [b"%05d" % number * 100 for number in range(300)]
    wanted[7] *= 39  # a batch of its own, which the topic takes
    for value in wanted:
        only.send(row(value))
    only.commit(Mark(1, "all of them"))
    assert only.look() == Mark(1, "all of them")
    only.close()
    assert values(bootstrap) == wanted


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.timeout(60)
def test_a_commit_that_no_broker_answers_is_given_up(
    transactional_broker: Callable[[], RunningBroker],
    client: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = transactional_broker()
    only = with_a_row(broker.bootstrap_servers, client)
    monkeypatch.setattr("pipeline.sink.clients.WAIT_S", 2.0)
    broker.kill()
    with pytest.raises(SinkError, match="no broker answers"):
        only.commit(Mark(1, "all of them"))
    only.abort()
    only.close()
