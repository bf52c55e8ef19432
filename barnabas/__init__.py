"""Barnabas: a Kafka broker for tests, laptops and small clusters.

    import barnabas

    with barnabas.Broker() as broker:
        broker.bootstrap_servers        # "127.0.0.1:54321": give it to any Kafka client

The broker runs as a child process, so nothing of it is imported into yours. From a shell:
`barnabas start`; from pytest: the fixtures `barnabas_broker` and `barnabas_shared_broker`.
"""

from __future__ import annotations

from barnabas.broker import Broker, BrokerError

__all__ = ["Broker", "BrokerError"]


def __getattr__(name: str) -> str:
    """`barnabas.__version__`, looked up only when asked: importlib.metadata is slow to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("barnabas")
    raise AttributeError(f"module 'barnabas' has no attribute {name!r}")
