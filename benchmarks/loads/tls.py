"""W9: one producer and one reader over TLS, on a broker of its own; of one suite, which all have.

Clients are librdkafka and kcat, as in the rows without TLS. They do not look at the certificate:
that is their own time. Topics are made over the plain listener beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import barnabas
from benchmarks.loads import rdkafka
from benchmarks.loads.base import Figures, Place
from benchmarks.measure import usage
from benchmarks.targets import CONFIG, JVM_OPTIONS
from testkit.brokers.authority import Authority, put
from testkit.brokers.nodes import ApacheKafka
from testkit.ports import free_ports

_SUITE = {
    "ssl.enabled.protocols": "TLSv1.2",
    "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
}
_CLIENT: dict[str, Any] = {"security.protocol": "ssl", "enable.ssl.certificate.verification": False}


class _Secured(NamedTuple):
    """A running broker: where it is found over TLS, without it, and its process."""

    tls: str
    place: Place
    pid: int


@contextmanager
def _broker(place: Place) -> Iterator[_Secured]:
    plain, tls, controller = free_ports(3)
    home = Path(place.scratch, "node")
    home.mkdir()
    authority = Authority()
    put(home / "own.pem", authority.issue("node"))
    put(home / "authority.pem", authority.certificate)
    config = {
        **CONFIG, **_SUITE, "node.id": 1, "process.roles": "broker,controller",
        "listeners": (
            f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},"
            f"CONTROLLER://127.0.0.1:{controller}"
        ),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER", "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": home / "own.pem",
        "ssl.truststore.type": "PEM", "ssl.truststore.location": home / "authority.pem",
    }  # fmt: skip
    broker: barnabas.Broker | ApacheKafka
    if place.kind == "barnabas":
        broker = barnabas.Broker(config=config)
    else:
        broker = ApacheKafka(home, config, JVM_OPTIONS, port=plain)
    broker.start()
    try:
        there = place._replace(bootstrap=f"127.0.0.1:{plain}")
        yield _Secured(f"127.0.0.1:{tls}", there, int(broker.pid or 0))
    finally:
        broker.kill()


def produce_and_consume(place: Place, size: int, count: int) -> Figures:
    """As `rdkafka.produce` and `rdkafka.consume`, twice; the second time counts. The broker's CPU
    of each apart."""
    with _broker(place) as (tls, there, pid):
        for topic in ("warm-up", place.topic):
            there = there._replace(topic=topic)
            before = usage(pid).cpu_s
            settings: dict[str, Any] = {"bootstrap.servers": tls, **_CLIENT}
            produced = rdkafka.produce(there, size, count, **settings)
            between = usage(pid).cpu_s
            consumed = rdkafka.consume(there._replace(bootstrap=tls), size, count, **_CLIENT)
            after = usage(pid).cpu_s
    return {
        "produced_s": produced["records_s"], "produce_cpu_s": between - before,
        "consumed_s": consumed["records_s"], "consume_cpu_s": after - between,
    }  # fmt: skip
