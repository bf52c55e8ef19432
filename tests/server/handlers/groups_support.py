"""Requests of the group APIs as bytes of a version, and what answers them (`clients_of`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from server.handlers import group_offsets, groups
from server.network.error_responses import error_response
from tests.server.coordinator.group_node import Node
from tests.server.coordinator.group_support import subscription
from wire.errors import ErrorCode as E
from wire.messages.groups import (
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from wire.schema import Request


class Context:
    """A request context whose answer goes through its bytes."""

    def __init__(self, broker: Any, api_version: int) -> None:
        self.broker = broker
        self.api_version = api_version
        self.client_id = "app"
        self.principal, self.peer_host = "User:alice", "127.0.0.1"
        self.answers: list[Any] = []

    def respond(self, response: Any) -> None:
        assert not self.answers, "answered twice"
        data = response.encode_bytes(self.api_version)
        self.answers.append(type(response).decode(data, self.api_version))

    def respond_error(self, request: Request, code: int, message: str | None = None) -> None:
        self.respond(error_response(request, self.api_version, code, message))


class Broker:
    """What handlers use of a broker."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.address: str | None = "dialled"

    @property
    def group_coordinator(self) -> Any:
        return self.node.groups

    @property
    def transaction_coordinator(self) -> Any:
        return self.node.transactions

    @property
    def transaction_verification(self) -> Any:
        return self.node.verification

    @property
    def metadata(self) -> Any:
        return self.node.image

    def endpoint_for(self, ctx: Context, broker: Any) -> tuple[str, int] | None:
        return None if self.address is None else (self.address, 9_000 + broker.broker_id)


class Clientele:
    """Sends requests as bytes of a version."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.broker = Broker(node)

    def start(self, handler: Any, request: Request, version: int) -> Context:
        context = Context(self.broker, version)
        received = type(request).decode(request.encode_bytes(version), version)
        assert handler(context, received) is None
        self.node.pass_time(0)
        return context

    def ask(self, handler: Any, request: Request, version: int) -> Any:
        context = self.start(handler, request, version)
        (answer,) = context.answers
        return answer


@contextmanager
def clients_of(directory: Path) -> Iterator[Clientele]:
    """Topics t (two partitions) and u (one), and a coordinator."""
    node = Node(directory)
    node.create("t", 2)
    node.create("u", 1)
    clients = Clientele(node)
    node.find()
    yield clients
    node.close()


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16)


def join_request(group: str = "g", member_id: str = "", **how: Any) -> JoinGroupRequest:
    fields = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequest.Protocol(name="range", metadata=subscription("t"))],
        **how,
    }
    return JoinGroupRequest(group_id=group, member_id=member_id, **fields)


def joined(clients: Clientele, version: int = 9, group: str = "g") -> str:
    """A member of a Stable group of one."""
    answer = clients.ask(groups.join_group, join_request(group), version)
    if answer.error_code == E.MEMBER_ID_REQUIRED:
        request = join_request(group, answer.member_id)
        answer = clients.ask(groups.join_group, request, version)
    assert answer.error_code == 0
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequest.Assignment(member_id=answer.member_id, assignment=b"all")],
    )
    assert clients.ask(groups.sync_group, sync, 5).assignment == b"all"
    return str(answer.member_id)


def commit_request(*topics: tuple[str, bytes, list[int]], **how: Any) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=how.pop("group", "g"),
        member_id=how.pop("member_id", ""),
        topics=[
            OffsetCommitRequest.Topic(
                name=name,
                topic_id=id_,
                partitions=[
                    OffsetCommitRequest.Topic.Partition(
                        partition_index=i, committed_offset=100 + i, committed_metadata="m"
                    )
                    for i in indexes
                ],
            )
            for name, id_, indexes in topics
        ],
        **how,
    )


def fetched(
    clients: Clientele, version: int, *topics: tuple[str, list[int]], stable: bool = False
) -> dict[Any, Any]:
    """{(topic name or id, partition): (offset, error)} of group g."""
    by_group = OffsetFetchRequest.Group.Topic
    groups_asked = [
        OffsetFetchRequest.Group(
            group_id="g",
            topics=[
                by_group(name=name, topic_id=topic_id(name), partition_indexes=indexes)
                for name, indexes in topics
            ]
            if topics
            else None,
        )
    ]
    plain = [
        OffsetFetchRequest.Topic(name=name, partition_indexes=indexes) for name, indexes in topics
    ]
    request = OffsetFetchRequest(
        group_id="g",
        topics=plain if topics else None,
        groups=groups_asked,
        require_stable=stable,
    )
    answer = clients.ask(group_offsets.offset_fetch, request, version)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    return {
        (topic.topic_id.strip().decode() if version >= 10 else topic.name, p.partition_index): (
            p.committed_offset,
            p.error_code,
        )
        for topic in found
        for p in topic.partitions
    }
