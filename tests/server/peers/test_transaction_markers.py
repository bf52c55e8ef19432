"""The way of markers: who is sent what, what is sent again, and when a transaction is done.

Time, the network and the metadata are played by the test; one test takes real threads.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from replication.metadata.image import PartitionRegistration, TopicImage
from server.coordinator.transaction_markers import TxnMarkers
from server.network.request_channel import elements_max
from server.peers import transaction_markers
from server.peers.broker_requests import BrokerRequests
from server.peers.call import PeerError
from server.peers.transaction_markers import (
    AGAIN_MAX_MS,
    AGAIN_MS,
    CHANNEL,
    TransactionMarkerChannel,
)
from testkit.clock import ManualTimer
from tests.server.handler_support import broker_registration, image_of
from wire.errors import ErrorCode
from wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from wire.primitives import TopicPartition

OWN, OTHERS = 1, (2, 3)
LOST = PeerError("the peer closed the connection")


class Sent:
    """A request on its way to a broker."""

    def __init__(self, broker_id: int, request: WriteTxnMarkersRequest, on_complete: Any) -> None:
        self.broker_id = broker_id
        self.request = request
        self.on_complete = on_complete

    @property
    def partitions(self) -> dict[int, set[tuple[str, int]]]:
        return {
            m.producer_id: {(t.name, i) for t in m.topics for i in t.partition_indexes}
            for m in self.request.markers
        }

    def answer(self, codes: dict[tuple[str, int], int] | None = None, default: int = 0) -> None:
        self.on_complete(answered(self.request, codes or {}, default))


def answered(
    request: WriteTxnMarkersRequest, codes: dict[tuple[str, int], int], default: int = 0
) -> WriteTxnMarkersResponse:
    make = WriteTxnMarkersResponse.Marker
    return WriteTxnMarkersResponse(
        markers=[
            make(
                producer_id=m.producer_id,
                topics=[
                    make.Topic(
                        name=t.name,
                        partitions=[
                            make.Topic.Partition(
                                partition_index=i, error_code=codes.get((t.name, i), default)
                            )
                            for i in t.partition_indexes
                        ],
                    )
                    for t in m.topics
                ],
            )
            for m in request.markers
        ]
    )


class Network:
    """A PeerClient that keeps what is sent until the test answers; the own node answers at once."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.own: list[WriteTxnMarkersRequest] = []

    def send(self, peer, request, version, response_class, on_complete, *, timeout_ms, channel):
        assert (version, response_class) == (2, WriteTxnMarkersResponse)
        assert channel == f"broker-1-{CHANNEL}"
        self.sent.append(Sent(int(peer.host.removeprefix("host-")), request, on_complete))

    def serve_own(self, request: WriteTxnMarkersRequest, on_complete: Any) -> None:
        self.own.append(request)
        on_complete(answered(request, {}))

    def take(self, broker_id: int) -> Sent:
        """The one request under way to a broker."""
        (found,) = [sent for sent in self.sent if sent.broker_id == broker_id]
        self.sent.remove(found)
        return found


class Cluster:
    """Broker 1 with its channel; topic t's partition n is led by `leaders[n]`."""

    def __init__(self, leaders: dict[int, int]) -> None:
        self.leaders = leaders
        self.network = Network()
        self.time = ManualTimer()
        self.done: list[str] = []
        self.brokers = [OWN, *OTHERS]
        requests = BrokerRequests(OWN, lambda: self.image, "PLAINTEXT", self.network)
        requests.serve_own(WriteTxnMarkersRequest, self.network.serve_own)
        self.channel = TransactionMarkerChannel(requests, lambda: self.image, self.time, 30_000)

    @property
    def image(self) -> Any:
        partitions = {
            index: PartitionRegistration((leader,), (bytes(16),), (leader,), leader)
            for index, leader in self.leaders.items()
        }
        topic = TopicImage("t", bytes(range(16)), partitions)
        return image_of(topic, brokers=[broker_registration(i) for i in self.brokers])

    def send(self, producer_id: int, *partitions: int, cep: int = 5, of: int = 0) -> None:
        name = f"tx-{producer_id}-{cep}"
        markers = TxnMarkers(
            name, of, cep, producer_id, 3, True, 2,
            frozenset(TopicPartition("t", index) for index in partitions),
        )  # fmt: skip
        self.channel.send(markers, lambda: self.done.append(name))


def of(*indexes: int) -> set[tuple[str, int]]:
    return {("t", index) for index in indexes}


def test_each_leader_gets_its_partitions_and_the_last_answer_completes() -> None:
    cluster = Cluster({0: 1, 1: 2, 2: 3, 3: 2})
    cluster.send(7, 0, 1, 2, 3)
    (own,) = cluster.network.own
    (marker,) = own.markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)
    two, three = cluster.network.take(2), cluster.network.take(3)
    assert two.partitions == {7: of(1, 3)}
    assert three.partitions == {7: of(2)}
    two.answer()
    assert cluster.done == []
    three.answer()
    assert cluster.done == ["tx-7-5"]
    assert cluster.channel.transaction_count == 0


def test_what_waits_for_a_broker_travels_in_one_request() -> None:
    cluster = Cluster({0: 2, 1: 2})
    for producer_id in range(100):
        cluster.send(producer_id, 0, 1)
    first = cluster.network.take(2)
    assert first.partitions == {0: of(0, 1)}
    first.answer()
    second = cluster.network.take(2)
    assert second.partitions == {producer_id: of(0, 1) for producer_id in range(1, 100)}
    second.answer()
    assert len(cluster.done) == 100
    assert cluster.network.sent == []


def test_a_request_has_no_more_elements_than_a_broker_takes() -> None:
    """It would refuse the same request each time, and no transaction of it would ever end."""
    partitions = range(8)
    cluster = Cluster(dict.fromkeys(partitions, 2))
    producers = range(15_000)
    for producer_id in producers:
        cluster.send(producer_id, *partitions)
    while cluster.network.sent:
        sent = cluster.network.take(2)
        frame = b"".join(bytes(part) for part in sent.request.encode(2))
        type(sent.request).decode(frame, 2, 0, elements_max(len(frame)))
        sent.answer()
    assert len(cluster.done) == len(producers)


def test_a_transaction_of_many_partitions_goes_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_markers, "PARTITIONS_MAX", 3)
    cluster = Cluster(dict.fromkeys(range(5), 2))
    cluster.send(7, *range(5))
    cluster.send(8, 0)
    first = cluster.network.take(2)
    assert {pid: len(part) for pid, part in first.partitions.items()} == {7: 3}
    first.answer()
    second = cluster.network.take(2)
    assert first.partitions[7] | second.partitions[7] == of(*range(5))
    assert second.partitions[8] == of(0)
    assert cluster.done == []
    second.answer()
    assert cluster.done == ["tx-7-5", "tx-8-5"]
    assert cluster.network.sent == []


def test_a_broker_that_does_not_answer_holds_up_nobody_elses_markers() -> None:
    cluster = Cluster({0: 2, 1: 3, 2: 1})
    cluster.send(7, 0)
    for producer_id in range(8, 20):
        cluster.send(producer_id, 1, 2)
        cluster.network.take(3).answer()
    assert cluster.done == [f"tx-{producer_id}-5" for producer_id in range(8, 20)]
    assert cluster.network.take(2).partitions == {7: of(0)}


def test_a_transaction_without_partitions_is_done_at_once() -> None:
    cluster = Cluster({})
    cluster.send(7)
    assert cluster.done == ["tx-7-5"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,  # from here on nobody expects it, and no marker is lost
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ],
)
def test_a_partition_that_cannot_yet_is_tried_again_at_its_leader_of_then(code: ErrorCode) -> None:
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0, 1)
    cluster.network.take(2).answer({("t", 1): code})
    cluster.leaders[1] = 3
    assert cluster.network.sent == []
    cluster.time.pass_(AGAIN_MS)
    again = cluster.network.take(3)
    assert again.partitions == {7: of(1)}
    assert cluster.done == []
    again.answer()
    assert cluster.done == ["tx-7-5"]


@pytest.mark.parametrize(
    "code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]
)
def test_a_partition_that_never_can_needs_no_marker(code: ErrorCode) -> None:
    cluster = Cluster({0: 2})
    cluster.send(7, 0)
    cluster.network.take(2).answer(default=code)
    assert cluster.done == ["tx-7-5"]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_fenced_coordinator_gives_the_whole_transaction_up(code: ErrorCode) -> None:
    cluster = Cluster({0: 2, 1: 3, 2: 3})
    cluster.send(7, 0, 1)
    cluster.send(8, 2)
    cluster.network.take(2).answer(default=code)
    cluster.network.take(3).answer(default=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    cluster.time.pass_(60_000)
    assert cluster.network.take(3).partitions == {8: of(2)}
    assert cluster.done == []


def test_after_a_broken_connection_everything_is_sent_again() -> None:
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0, 1)
    cluster.send(8, 0)
    cluster.network.take(2).on_complete(LOST)
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-8-5"]
    cluster.time.pass_(AGAIN_MS)
    again = cluster.network.take(2)
    assert again.partitions == {7: of(0, 1)}
    again.answer()
    assert cluster.done == ["tx-8-5", "tx-7-5"]


def test_an_answer_that_forgets_a_partition_is_not_a_marker() -> None:
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0, 1)
    sent = cluster.network.take(2)
    sent.request.markers[0].topics[0].partition_indexes.remove(1)
    sent.answer()
    cluster.time.pass_(AGAIN_MS)
    assert cluster.network.take(2).partitions == {7: of(1)}
    assert cluster.done == []


def test_a_dead_broker_is_asked_ever_more_seldom_but_for_ever() -> None:
    cluster = Cluster({0: 2})
    cluster.send(7, 0)
    asked = []
    for _ in range(10):
        cluster.network.take(2).on_complete(LOST)
        before = cluster.time.ms
        while not cluster.network.sent:
            cluster.time.pass_(10)
        asked.append(cluster.time.ms - before)
    assert asked == [50, 100, 200, 400, 800, *[AGAIN_MAX_MS] * 5]


def test_a_partition_without_a_leader_waits_for_one() -> None:
    cluster = Cluster({0: -1, 1: 9})
    cluster.send(7, 0, 1)
    cluster.time.pass_(5_000)
    assert cluster.network.sent == []
    assert cluster.done == []
    cluster.leaders.update({0: 2, 1: 2})
    cluster.time.pass_(AGAIN_MAX_MS)
    sent = cluster.network.take(2)
    assert sent.partitions == {7: of(0, 1)}
    sent.answer()
    assert cluster.done == ["tx-7-5"]


def test_deleted_partitions_need_no_marker() -> None:
    cluster = Cluster({0: 2})
    cluster.send(7, 0, 1)
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-7-5"]
    cluster.send(8, 4)
    assert cluster.done == ["tx-7-5", "tx-8-5"]


def test_a_frozen_brokers_partitions_go_on_at_their_new_leaders() -> None:
    """It would not answer for as long as a request may take, and is nobody's leader by then."""
    cluster = Cluster({0: 2, 1: 2, 2: 2})
    cluster.send(7, 0, 1)
    cluster.send(8, 2)
    frozen = cluster.network.take(2)
    cluster.leaders.update({0: 3, 2: 3})
    del cluster.leaders[1]
    cluster.channel.leaders_changed()
    first = cluster.network.take(3)
    first.answer()
    if cluster.network.sent:
        cluster.network.take(3).answer()
    assert sorted(cluster.done) == ["tx-7-5", "tx-8-5"]
    frozen.answer(default=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    cluster.time.pass_(60_000)
    assert cluster.network.sent == []
    assert len(cluster.done) == 2


def test_markers_that_are_being_placed_while_leaders_change_go_to_the_new_ones() -> None:
    """The broker of before is frozen: what were queued for it then would wait for its answer, and
    for that of the next request to it."""
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0)
    frozen = cluster.network.take(2)
    changed = threading.Thread(target=cluster.channel.leaders_changed)

    def look() -> Any:
        image = cluster.image
        if cluster.leaders[1] == 2:
            cluster.leaders[1] = 3
            changed.start()
            changed.join(0.2)  # on its thread it comes first, if it can
        return image

    cluster.channel._metadata = look
    cluster.send(8, 1)
    changed.join()
    cluster.network.take(3).answer()
    assert cluster.done == ["tx-8-5"]
    frozen.answer()
    assert cluster.network.sent == []


def test_what_a_leader_of_before_says_late_counts_no_more() -> None:
    cluster = Cluster({0: 2})
    cluster.send(7, 0)
    frozen = cluster.network.take(2)
    cluster.leaders[0] = 3
    cluster.channel.leaders_changed()
    frozen.answer(default=ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    cluster.network.take(3).answer()
    assert cluster.done == ["tx-7-5"]


def test_nothing_moves_when_leaders_stay() -> None:
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0)
    cluster.send(8, 1)
    cluster.channel.leaders_changed()
    cluster.network.take(2).answer()
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-7-5", "tx-8-5"]
    assert cluster.network.sent == []


def test_a_resigned_coordinator_sends_no_more_and_completes_nothing() -> None:
    cluster = Cluster({0: 2, 1: -1, 2: 2, 3: 2})
    cluster.send(7, 0, 1, of=4)
    cluster.send(8, 2, of=4)
    cluster.send(9, 3, of=5)
    cluster.channel.forget(4, 5)
    cluster.network.take(2).answer()
    cluster.leaders[1] = 3
    cluster.time.pass_(60_000)
    sent = cluster.network.take(2)
    assert sent.partitions == {9: of(3)}
    sent.answer()
    assert cluster.network.sent == []
    assert cluster.done == ["tx-9-5"]


def test_a_late_resignation_leaves_the_markers_of_the_next_coordinator_alone() -> None:
    cluster = Cluster({0: 2})
    cluster.send(7, 0, cep=6)
    cluster.channel.forget(0, 5)
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-7-6"]


def test_an_answer_to_the_coordinator_before_does_not_complete_for_the_next() -> None:
    """Loaded anew, the coordinator sends under its new epoch; an old request may still be out."""
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0, 1, cep=5)
    old = cluster.network.take(2)
    cluster.channel.forget(0, 5)
    cluster.send(7, 0, 1, cep=6)
    old.answer()
    assert cluster.done == []
    new = cluster.network.take(2)
    assert new.request.markers[0].coordinator_epoch == 6
    assert new.partitions == {7: of(0, 1)}
    new.answer()
    assert cluster.done == ["tx-7-6"]


def test_what_waits_for_the_coordinator_before_is_not_taken_for_the_next_ones() -> None:
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(1, 0)
    cluster.send(7, 0, 1, cep=5)
    cluster.channel.forget(0, 5)
    cluster.send(7, 0, cep=6)
    cluster.network.take(2).answer()
    sent = cluster.network.take(2)
    assert [marker.coordinator_epoch for marker in sent.request.markers] == [6]
    assert sent.partitions == {7: of(0)}
    sent.answer()
    assert cluster.done == ["tx-7-6"]


def test_a_late_word_of_the_coordinator_before_does_not_take_the_place_of_the_next_ones() -> None:
    cluster = Cluster({0: 2, 1: 2})
    cluster.send(7, 0, cep=6)
    cluster.send(7, 0, 1, cep=5)
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-7-6"]
    assert cluster.network.sent == []


def test_a_request_that_cannot_even_be_sent_is_tried_again() -> None:
    cluster = Cluster({0: 1})
    requests, works = [], []

    def broken(request: Any, on_complete: Any) -> None:
        requests.append(request)
        if not works:
            raise RuntimeError("played by the test")
        on_complete(answered(request, {}))

    cluster.channel._brokers.serve_own(WriteTxnMarkersRequest, broken)
    cluster.send(7, 0)
    works.append(True)
    cluster.time.pass_(AGAIN_MS)
    assert len(requests) == 2
    assert cluster.done == ["tx-7-5"]


def test_a_fault_of_whoever_is_told_costs_no_other_transaction() -> None:
    cluster = Cluster({0: 2})
    cluster.send(1, 0)

    def broken() -> None:
        raise RuntimeError("played by the test")

    partitions = frozenset({TopicPartition("t", 0)})
    cluster.channel.send(TxnMarkers("broken", 0, 5, 7, 3, True, 2, partitions), broken)
    cluster.send(8, 0)
    cluster.network.take(2).answer()
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-1-5", "tx-8-5"]
    cluster.send(9, 0)
    cluster.network.take(2).answer()
    assert cluster.done == ["tx-1-5", "tx-8-5", "tx-9-5"]


def test_answers_that_come_at_once_pile_up_no_frames() -> None:
    """On a node alone every marker is answered inside `send`, and done begins the next."""
    cluster = Cluster({0: 1})
    done = []

    def begin(number: int) -> None:
        def ended() -> None:
            done.append(number)
            if number < 5_000:
                begin(number + 1)

        markers = TxnMarkers(
            f"tx-{number}", 0, 5, number, 3, True, 2, frozenset({TopicPartition("t", 0)})
        )
        cluster.channel.send(markers, ended)

    begin(1)
    assert len(done) == 5_000


class Story:
    """Transactions begin, brokers answer anything or nothing, leaders move, coordinators resign."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cluster = Cluster({index: self.draw.choice([1, 2, 3, -1]) for index in range(8)})
        self.cluster.channel._brokers.serve_own(WriteTxnMarkersRequest, self._serve_own)
        self.written: defaultdict[int, set[int]] = defaultdict(set)
        self.alive: dict[int, TxnMarkers] = {}
        self.done: set[int] = set()
        self.is_healthy = False

    def step(self) -> None:
        events = (self._begin, self._answer, self._move, self._resign, self._wait)
        self.draw.choices(events, (30, 30, 15, 3, 22))[0]()
        for broker_id in OTHERS:
            under_way = [sent for sent in self.cluster.network.sent if sent.broker_id == broker_id]
            assert len(under_way) <= 1

    def get_well(self) -> None:
        """From now on everything works; wait until nothing is left to do."""
        self.is_healthy = True
        self.cluster.leaders.update(dict.fromkeys(range(8), 2))
        self.cluster.channel.leaders_changed()
        for _ in range(200):
            while self.cluster.network.sent:
                self._answer()
            if self.cluster.time.is_idle:
                return
            self.cluster.time.pass_(AGAIN_MAX_MS)

    def _begin(self) -> None:
        producer_id = len(self.alive) + len(self.done) + self.draw.randrange(1 << 32)
        indexes = self.draw.sample(range(8), self.draw.randrange(1, 6))
        markers = TxnMarkers(
            f"tx-{producer_id}", self.draw.randrange(3), 5, producer_id, 3, True, 2,
            frozenset(TopicPartition("t", index) for index in indexes),
        )  # fmt: skip
        self.alive[producer_id] = markers
        self.cluster.channel.send(markers, lambda: self._ended(producer_id))

    def _ended(self, producer_id: int) -> None:
        assert producer_id not in self.done
        self.done.add(producer_id)
        markers = self.alive.pop(producer_id)
        assert {index for _, index in markers.partitions} <= self.written[producer_id]

    def _answer(self) -> None:
        sent = self.cluster.network.sent
        if not sent:
            return
        one = sent.pop(self.draw.randrange(len(sent)))
        fate = 1.0 if self.is_healthy else self.draw.random()
        if fate < 0.1:
            one.on_complete(LOST)
        elif fate < 0.2:
            self._write(one.request)
            one.on_complete(LOST)
        else:
            one.answer(self._write(one.request))

    def _serve_own(self, request: WriteTxnMarkersRequest, on_complete: Any) -> None:
        on_complete(answered(request, self._write(request)))

    def _write(self, request: WriteTxnMarkersRequest) -> dict[tuple[str, int], int]:
        fates = [0] if self.is_healthy else [0, 0, 0, 3, 6, 7, 19, 20, 56, -1]
        codes = {("t", index): self.draw.choice(fates) for index in range(8)}
        for marker in request.markers:
            (topic,) = marker.topics
            self.written[marker.producer_id].update(
                index for index in topic.partition_indexes if not codes["t", index]
            )
        return codes

    def _move(self) -> None:
        self.cluster.leaders[self.draw.randrange(8)] = self.draw.choice([1, 2, 3, -1])
        if self.draw.random() < 0.5:
            self.cluster.channel.leaders_changed()

    def _resign(self) -> None:
        partition = self.draw.randrange(3)
        self.cluster.channel.forget(partition, 5)
        self.alive = {
            producer_id: markers
            for producer_id, markers in self.alive.items()
            if markers.coordinator_partition != partition
        }

    def _wait(self) -> None:
        self.cluster.time.pass_(self.draw.randrange(200))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_transaction_is_done_once_and_only_with_all_its_markers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(transaction_markers, "PARTITIONS_MAX", 2)
    story = Story(seed)
    for _ in range(300):
        story.step()
    story.get_well()
    assert story.alive == {}
    assert story.done
    assert story.cluster.channel.transaction_count == 0


class Answerer:
    """A network whose answers come on a thread of its own."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.thread = threading.Thread(target=self._run)

    def send(self, peer, request, version, response_class, on_complete, **_: Any) -> None:
        self.queue.put(Sent(0, request, on_complete))

    def _run(self) -> None:
        while (sent := self.queue.get()) is not None:
            sent.answer()


def test_many_threads_lose_no_marker() -> None:
    """Senders on four threads, answers on another: everything is done once."""
    cluster, network, done = Cluster({0: 2, 1: 3, 2: 1}), Answerer(), []
    cluster.channel._brokers._peers = network
    partitions = frozenset(TopicPartition("t", index) for index in range(3))

    def ended(producer_id: int) -> None:
        done.append(producer_id)
        if len(done) == 1_000:
            network.queue.put(None)

    def begin(first: int) -> None:
        for producer_id in range(first, 1_000, 4):
            markers = TxnMarkers(f"tx-{producer_id}", 0, 5, producer_id, 3, True, 2, partitions)
            cluster.channel.send(markers, partial(ended, producer_id))

    threads = [threading.Thread(target=begin, args=(n,)) for n in range(4)]
    for thread in (*threads, network.thread):
        thread.start()
    for thread in (*threads, network.thread):
        thread.join()
    assert sorted(done) == list(range(1_000))
