"""Well-formed requests with wild values, over every API and version, against a whole broker.

N-2, N-4: each of them is answered or its connection closed; none is a fault of ours.
"""

from __future__ import annotations

import random

import pytest

from server.config.kafka_config import KafkaConfig
from server.handlers import BROKER_APIS, CONTROLLER_APIS
from server.node.node import Node
from tests.server.wire_client import WireClient, request_bytes
from wire.messages.cluster import MetadataRequest

INTS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16}
WAITS = ("timeout_ms", "max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms")
NAMES = [
    "", "t", "u", "g", "__consumer_offsets", "../x", "a" * 300, "x\n\x1b[31m", "1", "é",
    "consumer", "range", "retention.ms", "segment.bytes", "cleanup.policy",
]  # fmt: skip


class Wild:
    """Makes requests; the same ones for the same seed."""

    def __init__(self, seed: int, topic_id: bytes, apis) -> None:
        self.rng = random.Random(seed)
        self.topic_id = topic_id
        self.apis = apis

    def struct(self, made, version):
        return made(**{field.name: self.value(field, version) for field in made.schema})

    def value(self, field, version):
        rng = self.rng
        if field.null_allowed(version) and rng.random() < 0.2:
            return None
        if field.kind == "struct":
            return self.struct(field.struct, version)
        if field.kind == "[]struct":
            return [self.struct(field.struct, version) for _ in range(rng.choice((0, 1, 1, 2)))]
        if field.kind.startswith("[]"):
            return [self.scalar(field.kind[2:]) for _ in range(rng.choice((0, 1, 1, 2)))]
        return self.scalar(field.kind)

    def scalar(self, kind):
        rng = self.rng
        if kind in INTS:
            top = 2 ** INTS[kind]
            low = 0 if kind == "uint16" else -top
            edges = (0, 0, 0, 1, 2, 3, low, top - 1, rng.randrange(low, top))
            return rng.choice(edges if kind == "uint16" else (*edges, -1, -2))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "float64":
            return rng.choice((0.0, 1.5, -1.0, float("inf"), float("nan")))
        if kind == "string":
            return rng.choice(NAMES)
        if kind == "uuid":
            return rng.choice((bytes(16), bytes(range(16)), self.topic_id))
        return rng.randbytes(rng.choice((0, 1, 20, 70)))

    def request(self):
        api = self.rng.choice([self.apis[key] for key in sorted(self.apis)])
        api.load()
        version = self.rng.randint(api.min_version, api.max_version)
        request = self.struct(api.request_class, version)
        for name in WAITS:
            if hasattr(request, name):
                setattr(request, name, self.rng.choice((0, 1, 10, -5)))
        return api.api_key, version, request


CLIENTS, CONTROLLERS = "PLAINTEXT://127.0.0.1:0", "CONTROLLER://127.0.0.1:0"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("listeners", [[CLIENTS], [CLIENTS, CONTROLLERS]])
def test_no_request_is_too_wild_for_the_broker(tmp_path, listeners, seed):
    """The last of the listeners is the one that is asked."""
    broker = Node(KafkaConfig({"log.dirs": str(tmp_path), "listeners": ",".join(listeners)}))
    asks_controller = CONTROLLERS in listeners
    try:
        broker.start()
        server = broker.controller_server if asks_controller else broker.broker_server
        apis = CONTROLLER_APIS if asks_controller else BROKER_APIS
        channel = server.socket_server.request_channel
        healthy = WireClient(broker.port)
        topics = [MetadataRequest.Topic(name=name) for name in ("t", "u")]
        healthy.ask(MetadataRequest(topics=topics), 9)
        wild = Wild(seed, broker.shared.metadata.topics_by_name["t"].topic_id, apis)
        client = WireClient(server.port)
        for _ in range(600):
            key, version, request = wild.request()
            try:
                client.sock.sendall(request_bytes(request, version, 5))
                if key != 0 or request.acks != 0:
                    client.read(key, version)
            except (EOFError, ConnectionError):
                client.close()
                client = WireClient(server.port)
            assert channel.failed == 0, (seed, version, request)
        assert healthy.ask(MetadataRequest(topics=topics), 9).error_code == 0
        client.close()
        healthy.close()
    finally:
        broker.shutdown()
