"""The way to the active controller: who is asked, what is tried again, and what a client is told.

Time, the network and the quorum are played by the test; one test at the end takes real sockets.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pytest

from replication.controller.context import ControllerContext
from server.handlers import CONTROLLER_APIS
from server.network.listeners import Listener
from server.network.socket_server import SocketServer, SocketServerConfig, monotonic_ms
from server.peers import envelope
from server.peers.call import PeerError
from server.peers.controller_channel import ControllerChannel
from server.peers.peer_client import PeerClient
from testkit.clock import ManualTimer
from tests.server.handler_support import FakeBroker, create_topics, created, image_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    CreateTopicsRequest,
)
from wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from wire.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    DescribeQuorumRequest,
)
from wire.messages.security import RenewDelegationTokenRequest

NOT_CONTROLLER = KafkaError(ErrorCode.NOT_CONTROLLER)
CLIENT = ControllerContext("User:alice", 5, "client-7", "10.1.2.3")


class Address(NamedTuple):
    host: str
    port: int


class Raft:
    """Who leads, as far as this node knows."""

    def __init__(self, leader_id: int = -1) -> None:
        self.leader_id = leader_id

    def leader_endpoint(self) -> Address | None:
        return None if self.leader_id < 0 else Address(f"node-{self.leader_id}", 9093)


class Network:
    """A PeerClient that keeps what is sent until the test answers."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.wanted: list[Any] = []
        self.on_send: Any = lambda: None

    def send(
        self, peer, request, version, response_class, on_complete,
        *, timeout_ms, channel, is_wanted,
    ):  # fmt: skip
        self.sent.append((peer.host, request, version, channel, on_complete, timeout_ms))
        self.wanted.append(is_wanted)
        self.on_send()

    def last(self) -> Any:
        return self.sent[-1]

    def answer(self, response: Any, which: int = -1) -> None:
        self.sent[which][4](response)


class LocalController:
    def __init__(self, is_active: bool = True) -> None:
        self.is_active = is_active
        self.submitted: list[Any] = []

    def submit(self, request, on_complete, *, context=None):
        self.submitted.append((request, on_complete, context))


class Cluster:
    """Node 1 with its channel."""

    def __init__(self, leader_id: int = 2, local: LocalController | None = None) -> None:
        self.raft = Raft(leader_id)
        self.network = Network()
        self.time = ManualTimer()
        self.local = local
        self.channel = ControllerChannel(1, local, self.raft, self.network, self.time, self.time)
        self.answers: list[Any] = []

    def submit(self, request: Any, **more: Any) -> None:
        self.channel.submit(request, self.answers.append, **more)


def heartbeat() -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=7, current_metadata_offset=3, want_fence=False,
        want_shut_down=False,
    )  # fmt: skip


def heartbeat_answer(code: int = 0) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        error_code=code, is_caught_up=True, is_fenced=False, should_shut_down=False
    )


def sealed(response: Any, version: int) -> EnvelopeResponse:
    head = bytes(4) + (b"\0" if type(response).is_flexible(version) else b"")
    return EnvelopeResponse(error_code=0, response_data=head + response.encode_bytes(version))


def test_a_brokers_own_request_goes_to_the_leader_as_itself():
    cluster = Cluster(leader_id=2)
    cluster.submit(heartbeat())
    host, request, version, channel, _, timeout_ms = cluster.network.last()
    assert (host, version, timeout_ms) == ("node-2", 2, 30_000)
    assert isinstance(request, BrokerHeartbeatRequest)
    assert channel == "broker-1-to-controller-heartbeat"
    cluster.network.answer(heartbeat_answer())
    assert [answer.error_code for answer in cluster.answers] == [0]


def test_the_active_controller_of_this_process_is_asked_directly():
    cluster = Cluster(leader_id=1, local=LocalController())
    cluster.submit(create_topics(), context=CLIENT)
    request, on_complete, context = cluster.local.submitted[0]
    assert isinstance(request, CreateTopicsRequest)
    assert context == CLIENT
    on_complete(created())
    assert len(cluster.answers) == 1
    assert cluster.network.sent == []


def test_an_error_that_this_release_does_not_know_is_an_answer_all_the_same():
    cluster = Cluster()
    cluster.submit(create_topics(), context=CLIENT)
    cluster.network.answer(EnvelopeResponse(error_code=9_999, response_data=None))
    (answer,) = cluster.answers
    assert (answer.code, "9999" in answer.detail) == (ErrorCode.UNKNOWN_SERVER_ERROR, True)


def test_a_clients_request_that_no_envelope_holds_is_refused_and_not_sent_again_and_again():
    """A listener takes it; the controller's closes the connection, which others' requests share."""
    cluster = Cluster()
    largest = RenewDelegationTokenRequest(hmac=bytes(104_857_500), renew_period_ms=-1)
    cluster.submit(largest, context=CLIENT._replace(api_version=2))
    (answer,) = cluster.answers
    assert answer.code == ErrorCode.INVALID_REQUEST
    assert cluster.network.sent == []
    largest.hmac = largest.hmac[:-1_000]
    cluster.submit(largest, context=CLIENT._replace(api_version=2))
    assert len(cluster.network.sent) == 1


def test_a_clients_request_goes_inside_an_envelope_and_its_answer_comes_out():
    cluster = Cluster()
    cluster.submit(create_topics(), context=CLIENT)
    _, request, version, channel, _, _ = cluster.network.last()
    assert isinstance(request, EnvelopeRequest)
    assert (version, channel) == (0, "broker-1-to-controller-forwarding")
    assert envelope.read_principal(request.request_principal) == "User:alice"
    assert envelope.read_address(request.client_host_address) == "10.1.2.3"
    cluster.network.answer(sealed(created(ErrorCode.TOPIC_ALREADY_EXISTS), 5))
    (answer,) = cluster.answers
    assert answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("error", "code"), [(97, ErrorCode.UNKNOWN_SERVER_ERROR), (35, ErrorCode.UNSUPPORTED_VERSION)]
)
def test_an_error_of_the_envelope_is_not_shown_to_the_client(error, code):
    cluster = Cluster()
    cluster.submit(create_topics(), context=CLIENT)
    cluster.network.answer(EnvelopeResponse(error_code=error))
    (answer,) = cluster.answers
    assert answer.code == code


def test_an_answer_that_cannot_be_read_is_our_fault_and_not_the_clients():
    cluster = Cluster()
    cluster.submit(create_topics(), context=CLIENT)
    cluster.network.answer(EnvelopeResponse(error_code=0, response_data=b"\0\0"))
    assert cluster.answers[0].code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    "refusal",
    [PeerError("connection refused"), EnvelopeResponse(error_code=41)],
    ids=["refused", "not the controller"],
)
def test_a_clients_request_is_tried_again_until_a_controller_answers(refusal):
    cluster = Cluster()
    cluster.submit(create_topics(), context=CLIENT)
    for _ in range(3):
        cluster.network.answer(refusal)
        cluster.time.pass_(50)
    assert len(cluster.network.sent) == 4
    cluster.network.answer(sealed(created(), 5))
    assert [answer.topics[0].error_code for answer in cluster.answers] == [0]


@pytest.mark.parametrize("answer", [heartbeat_answer(41), created(41), NOT_CONTROLLER])
def test_not_controller_in_any_shape_is_tried_again(answer):
    cluster = Cluster()
    cluster.submit(heartbeat())
    cluster.network.answer(answer)
    assert cluster.answers == []
    cluster.time.pass_(50)
    assert len(cluster.network.sent) == 2


def test_other_errors_are_answers():
    cluster = Cluster()
    cluster.submit(heartbeat())
    cluster.network.answer(heartbeat_answer(ErrorCode.STALE_BROKER_EPOCH))
    assert cluster.answers[0].error_code == ErrorCode.STALE_BROKER_EPOCH


def test_without_a_leader_it_waits_for_one():
    cluster = Cluster(leader_id=-1)
    cluster.submit(heartbeat())
    cluster.time.pass_(5_000)
    assert cluster.network.sent == []
    cluster.raft.leader_id = 3
    cluster.time.pass_(50)
    assert cluster.network.last()[0] == "node-3"


def test_a_leader_that_has_not_taken_over_yet_is_waited_for():
    cluster = Cluster(leader_id=1, local=LocalController(is_active=False))
    cluster.submit(heartbeat())
    cluster.time.pass_(100)
    assert cluster.local.submitted == []
    cluster.local.is_active = True
    cluster.time.pass_(50)
    _, on_complete, _ = cluster.local.submitted[0]
    on_complete(NOT_CONTROLLER)  # it lost leadership at once
    assert cluster.answers == []
    cluster.raft.leader_id = 2
    cluster.time.pass_(50)
    assert cluster.network.last()[0] == "node-2"


def test_when_the_leader_changes_the_new_one_is_asked_while_the_old_one_is_silent():
    cluster = Cluster(leader_id=2)
    cluster.submit(create_topics(), context=CLIENT)
    cluster.raft.leader_id = -1
    cluster.time.pass_(1000)
    assert len(cluster.network.sent) == 1
    cluster.raft.leader_id = 3
    cluster.time.pass_(50)
    assert [sent[0] for sent in cluster.network.sent] == ["node-2", "node-3"]
    cluster.network.answer(sealed(created(), 5))
    cluster.network.answer(PeerError("no answer in time"), 0)
    cluster.time.pass_(1000)
    assert len(cluster.answers) == 1
    assert len(cluster.network.sent) == 2


def test_a_late_answer_of_the_old_leader_counts_once():
    cluster = Cluster(leader_id=2)
    cluster.submit(heartbeat())
    cluster.raft.leader_id = 3
    cluster.time.pass_(500)
    cluster.network.answer(heartbeat_answer(), 0)
    cluster.network.answer(heartbeat_answer(), 1)
    assert len(cluster.answers) == 1


def test_what_waits_for_its_turn_at_the_old_leader_is_not_wanted_there_any_more():
    """It may lead again when the turn comes, and the deleted topic be made again."""
    cluster = Cluster(leader_id=2)
    cluster.submit(create_topics(), context=CLIENT)
    old, wanted = 0, cluster.network.wanted
    assert wanted[old]()
    cluster.raft.leader_id = 3
    cluster.time.pass_(500)
    assert [is_wanted() for is_wanted in wanted] == [False, True]
    cluster.network.answer(sealed(created(), 5))
    cluster.raft.leader_id = 2
    cluster.time.pass_(500)
    assert [is_wanted() for is_wanted in wanted] == [False, False]


def test_what_is_answered_while_others_are_sent_to_the_next_leader_is_not_sent_there():
    cluster = Cluster(leader_id=2)
    for _ in range(2):
        cluster.submit(create_topics(), context=CLIENT)

    def answer_the_other() -> None:
        cluster.network.on_send = lambda: None
        (other,) = (which for which in (0, 1) if cluster.network.wanted[which]())
        cluster.network.answer(sealed(created(), 5), other)

    cluster.network.on_send = answer_the_other
    cluster.raft.leader_id = 3
    cluster.time.pass_(500)
    assert len(cluster.answers) == 1
    assert [sent[0] for sent in cluster.network.sent] == ["node-2", "node-2", "node-3"]


def test_after_the_deadline_the_answer_is_request_timed_out():
    cluster = Cluster(leader_id=-1)
    cluster.submit(heartbeat(), timeout_ms=4500)
    cluster.time.pass_(4499)
    assert cluster.answers == []
    cluster.time.pass_(1)
    assert [answer.code for answer in cluster.answers] == [ErrorCode.REQUEST_TIMED_OUT]
    assert "has no leader" in cluster.answers[0].detail
    assert cluster.time.is_idle


def test_a_timeout_tells_what_went_wrong_last():
    cluster = Cluster()
    cluster.submit(heartbeat(), timeout_ms=40)
    cluster.network.answer(PeerError("node-2:9093: Connection refused"))
    cluster.time.pass_(40)
    assert "Connection refused" in cluster.answers[0].detail


def test_nothing_is_watched_when_nothing_is_under_way():
    cluster = Cluster()
    cluster.submit(heartbeat())
    cluster.network.answer(heartbeat_answer())
    cluster.time.pass_(1000)
    assert cluster.time.is_idle


def test_shutdown_tells_whoever_waits_and_whoever_comes():
    cluster = Cluster(leader_id=-1)
    cluster.submit(heartbeat())
    cluster.channel.shutdown()
    cluster.submit(heartbeat())
    assert [answer.code for answer in cluster.answers] == [ErrorCode.NOT_CONTROLLER] * 2
    cluster.time.pass_(60_000)
    assert len(cluster.answers) == 2


def test_a_question_to_the_quorum_that_came_home_is_for_raft_to_answer():
    cluster = Cluster(leader_id=1, local=LocalController())
    cluster.submit(DescribeQuorumRequest(topics=[]), context=CLIENT)
    assert cluster.answers[0].code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_question_to_the_quorum_waits_for_the_next_leader_while_this_one_resigns():
    cluster = Cluster(leader_id=1, local=LocalController(is_active=False))
    cluster.submit(DescribeQuorumRequest(topics=[]), context=CLIENT._replace(api_version=2))
    assert cluster.answers == []
    cluster.raft.leader_id = 2
    cluster.time.pass_(50)
    assert cluster.network.last()[0] == "node-2"


def test_a_callback_that_raises_harms_nobody(caplog):
    cluster = Cluster()

    def broken(_answer: Any) -> None:
        raise RuntimeError("a bug of the caller")

    cluster.channel.submit(heartbeat(), broken)
    cluster.network.answer(heartbeat_answer())
    assert "completion failed" in caplog.text


# ---- both ends


@pytest.mark.parametrize("host", ["10.1.2.3", "2001:db8::1", "fe80::1%eth0"])
def test_addresses_survive_the_envelope(host):
    wrapped = envelope.wrap(create_topics(), CLIENT._replace(client_host=host))
    assert envelope.read_address(wrapped.client_host_address) == host.partition("%")[0]


def test_over_real_sockets_a_clients_request_finds_the_controller_and_comes_back():
    broker = FakeBroker(image_of())
    broker.role = "controller"

    class Deciding:
        is_active = True

        def submit(self, request, on_complete, *, context=None):
            seen.append((context.principal, context.client_host, context.api_version))
            on_complete(created(ErrorCode.TOPIC_ALREADY_EXISTS))

    seen: list[Any] = []
    broker.controller = Deciding()
    listener = Listener("CONTROLLER", "127.0.0.1", 0)
    server = SocketServer(SocketServerConfig(), [listener], broker, CONTROLLER_APIS)
    server.start()
    peers = PeerClient(monotonic_ms, "node-1")
    peers.start()
    raft = Raft(2)
    raft.leader_endpoint = lambda: Address("127.0.0.1", server.port)  # type: ignore[method-assign]
    channel = ControllerChannel(1, None, raft, peers, ManualTimer(), monotonic_ms)
    answered = threading.Event()
    answers: list[Any] = []

    def on_complete(answer: Any) -> None:
        answers.append(answer)
        answered.set()

    try:
        channel.submit(create_topics(), on_complete, context=CLIENT)
        assert answered.wait(60)
    finally:
        channel.shutdown()
        peers.shutdown()
        server.shutdown()
    assert answers[0].topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert seen == [("User:alice", "10.1.2.3", 5)]
