"""Pytest fixtures: a broker or a cluster of one's own for a test, or a broker for the session.

    def test_orders_arrive(barnabas_broker):
        producer = KafkaProducer(bootstrap_servers=barnabas_broker.bootstrap_servers)

`barnabas_broker` is fresh for each test: its own directory, port and topics.
`barnabas_cluster` is three nodes, fresh for each test; barnabas.Cluster says how to hurt them.
`barnabas_shared_broker` is started once a session (once a worker under pytest-xdist): use unique
topic names with it. Override the fixture `barnabas_config` to give the brokers other properties,
or mark one test, whose own broker or cluster has them then:

    @pytest.mark.barnabas_config({"num.partitions": 4})

They may be used in asynchronous tests as they are. A test that fails shows the last lines of what
its brokers wrote, and the last requests that they were sent.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

from barnabas.broker import Broker
from barnabas.process import BrokerError, log_end

if TYPE_CHECKING:
    from barnabas.cluster import Cluster

    _Kind = TypeVar("_Kind", Broker, Cluster)

_MARK = "barnabas_config"


@pytest.fixture(scope="session")
def barnabas_config() -> dict[str, object]:
    """The brokers' properties, by Kafka's names; override it in your conftest.py."""
    return {}


@pytest.fixture
def barnabas_broker(
    barnabas_config: dict[str, object], request: pytest.FixtureRequest
) -> Iterator[Broker]:
    """A fresh broker for one test."""
    yield from _lent(Broker, _marked(barnabas_config, request))


@pytest.fixture(scope="session")
def barnabas_shared_broker(barnabas_config: dict[str, object]) -> Iterator[Broker]:
    """One broker for the whole session."""
    yield from _lent(Broker, barnabas_config)


@pytest.fixture
def barnabas_cluster(
    barnabas_config: dict[str, object], request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """A fresh cluster of three nodes for one test."""
    from barnabas.cluster import Cluster

    yield from _lent(Cluster, _marked(barnabas_config, request))


def _lent(kind: type[_Kind], config: dict[str, object]) -> Iterator[_Kind]:
    """Started for a test and stopped after it; what goes wrong is told without lines of ours."""
    try:
        with kind(config=config) as lent:
            yield lent
    except (BrokerError, ValueError) as error:
        failure = str(error)
    else:
        return
    pytest.fail(failure, pytrace=False)  # out of the except: pytest would show the error twice


def _marked(config: dict[str, object], request: pytest.FixtureRequest) -> dict[str, object]:
    """The properties of one test: what its marks say wins, the innermost most of all."""
    for mark in reversed(list(request.node.iter_markers(_MARK))):
        if len(mark.args) != 1 or mark.kwargs or not isinstance(mark.args[0], dict):
            pytest.fail(f'expected @pytest.mark.{_MARK}({{"num.partitions": 4}})', pytrace=False)
        config = {**config, **mark.args[0]}
    return config


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_MARK}(properties): broker properties of this test, by Kafka's names"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A mark that would change nothing is a mistake."""
    used = set(getattr(item, "fixturenames", ()))
    own = {"barnabas_broker", "barnabas_cluster"}
    if "barnabas_shared_broker" in used and not used & own and item.get_closest_marker(_MARK):
        pytest.fail(
            f"@pytest.mark.{_MARK} does not change barnabas_shared_broker, which others use too:"
            " take barnabas_broker",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its brokers wrote, and were asked, last."""
    report = yield
    if report.failed:
        clusters = sys.modules.get("barnabas.cluster")  # not imported for those who need none
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Broker):
                _show(report, name, value.log_text, value.last_requests())
            elif clusters is not None and isinstance(value, clusters.Cluster):
                for node in value.nodes:
                    log, requests = value.log_text(node), value.last_requests(node)
                    _show(report, f"node {node}", log, requests)
    return report


def _show(report: pytest.TestReport, name: str, log: str, requests: str) -> None:
    report.sections.append((f"log of {name}", log_end(log)))
    if requests:
        report.sections.append((f"last requests of {name}", log_end(requests)))
