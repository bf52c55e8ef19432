"""Memory of large requests: charged as it arrives, never held by a claim; real sockets."""

from __future__ import annotations

import os
import struct
import threading
import time
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from server.network.api import Api
from server.network.limits import MemoryPool, Unread, UnreadAnswers
from server.network.listeners import Listener
from server.network.socket_server import SocketServer, SocketServerConfig
from testkit.clock import SkippingClock
from tests.server.network.network_support import Full, wait_until
from tests.server.wire_client import WireClient, request_bytes
from wire.messages.data import ProduceRequest, ProduceResponse

PRODUCE = 0
LOOPBACK = [Listener("PLAINTEXT", "127.0.0.1", 0)]


class Served:
    """A socket server that takes Produce, with this much memory for large ones."""

    def __init__(self, memory):
        self.taken = []
        self.parked = SimpleQueue()
        self.clock = SkippingClock()
        api = Api(PRODUCE, "Produce", "server.handlers.produce", (3, 13))
        api.request_class, api.handle = ProduceRequest, self.produce
        config = SocketServerConfig(queued_max_request_bytes=memory)
        self.server = SocketServer(config, LOOPBACK, None, {PRODUCE: api}, self.clock)
        self.pool = self.server.memory
        self.clients = []

    def produce(self, ctx, request):
        self.taken.append(len(request.topic_data[0].partition_data[0].records))
        if request.timeout_ms > 0:
            self.parked.put(lambda: ctx.respond(ProduceResponse(responses=[])))
            return None
        return ProduceResponse(responses=[])

    def client(self):
        self.clients.append(WireClient(self.server.port, timeout=30))
        return self.clients[-1]

    def half_sent(self, claimed, sent):
        """A client that announces a frame of `claimed` bytes, sends `sent` of it, and stops."""
        client = self.client()
        before = self.pool.available
        client.sock.sendall(produce_frame(claimed)[:sent])
        wait_until(self.server, lambda: self.pool.available <= before - sent + 1)
        return client

    def read_on(self):
        """A client that has sent more than there is memory for, and is the one that may go on:
        nobody else wanted to when it did."""
        client = self.half_sent(claimed=50_000_000, sent=1_100_000)
        left = self.pool.available
        client.sock.sendall(b"x")
        wait_until(self.server, lambda: self.pool.available < left)
        return client

    def let_pass(self, ms):
        """Move the clock, and have the deadlines looked at."""
        (processor,) = self.server.processors
        self.clock.skipped_ms += ms
        turned, looked = threading.Event(), threading.Event()
        processor._command(turned.set)  # the clock is read once a turn
        assert turned.wait(60)
        processor._command(lambda: (processor._sweep(), looked.set()))
        assert looked.wait(60)

    @property
    def connections(self):
        return len(self.server.processors[0].channels)


@contextmanager
def serving(memory):
    served = Served(memory)
    served.server.start()
    try:
        yield served
    finally:
        for client in served.clients:
            client.close()
        served.server.shutdown(2.0)


def produce(size, timeout_ms=0):
    """What has time to wait is answered when it is told to."""
    partition = ProduceRequest.Topic.Partition(index=0, records=bytes(size))
    topic = ProduceRequest.Topic(name="t", partition_data=[partition])
    return ProduceRequest(acks=1, timeout_ms=timeout_ms, topic_data=[topic])


def produce_frame(size):
    return request_bytes(produce(size), 9, 1)


def test_sockets_that_announce_much_and_send_little_stop_nobody():
    """N2: two of them blocked every request over 64 KiB for as long as they liked."""
    with serving(memory=1_000_000) as served:
        idle = [served.client() for _ in range(20)]
        for client in idle:
            client.sock.sendall(struct.pack(">i", 100_000_000) + bytes(100))
        honest = served.client()
        for _ in range(3):
            honest.ask(produce(900_000), 9)
        assert served.taken == [900_000] * 3
        assert served.pool.available > 900_000, "a claim costs nothing"


def test_half_sent_frames_that_fill_the_memory_do_not_stop_a_large_request():
    with serving(memory=1_000_000) as served:
        hostile = served.read_on()
        honest = served.client()
        sender = threading.Thread(target=honest.send, args=(produce(5_000_000), 9))
        sender.start()
        wait_until(served.server, lambda: served.pool.blocker is not None)
        assert served.taken == []
        served.let_pass(2_000)
        honest.read(PRODUCE, 9)
        sender.join()
        assert served.taken == [5_000_000]
        assert hostile.is_closed()
        assert served.pool.available == 1_000_000


def test_many_large_requests_at_once_all_get_through_a_small_pool():
    """N-9: nobody is stuck, although each is larger than the pool."""
    with serving(memory=300_000) as served:
        clients = [served.client() for _ in range(16)]
        frame = produce_frame(500_000)
        senders = [threading.Thread(target=c.sock.sendall, args=(frame,)) for c in clients]
        for sender in senders:
            sender.start()
        for client in clients:
            client.read(PRODUCE, 9)
        for sender in senders:
            sender.join()
        assert len(served.taken) == 16
        assert served.pool.available == 300_000


def test_a_large_request_cut_off_gives_its_memory_back():
    with serving(memory=300_000) as served:
        cut = served.half_sent(claimed=500_000, sent=400_000)
        cut.close()
        wait_until(served.server, lambda: served.pool.available == 300_000)


def test_half_sent_frames_are_hurried_while_they_use_up_the_memory():
    """Kafka leaves them their memory for connections.max.idle.ms; trickling, for ever."""
    with serving(memory=1_000_000) as served:
        hostile = [served.half_sent(claimed=50_000_000, sent=600_000) for _ in range(2)]
        served.let_pass(9_000)
        for client in hostile:
            client.sock.sendall(b"x")  # as a trickling sender does
        served.let_pass(0)
        assert served.connections == 2
        served.let_pass(3_000)
        assert served.connections == 0
        assert all(client.is_closed() for client in hostile)
        assert served.pool.available == 1_000_000


def test_half_sent_frames_have_their_time_while_there_is_memory():
    with serving(memory=10_000_000) as served:
        slow = served.half_sent(claimed=800_000, sent=600_000)
        served.let_pass(25_000)
        slow.sock.sendall(produce_frame(800_000)[600_000:])
        slow.read(PRODUCE, 9)
        assert served.taken == [800_000]


def test_a_large_request_that_waits_for_memory_is_read_on_although_the_one_before_it_was_answered():
    """The answer gives memory back, and with it the place in the line of those who wait."""
    with serving(memory=1_000_000) as served:
        hostile = served.read_on()
        client = served.client()
        large = produce_frame(500_000)
        client.sock.sendall(request_bytes(produce(1, timeout_ms=1), 9, 1) + large[:1_000])
        answer = served.parked.get()
        client.sock.sendall(large[1_000:2_000])
        wait_until(served.server, lambda: served.pool.blocker is not None)
        answer()
        client.read(PRODUCE, 9)
        hostile.close()
        client.sock.sendall(large[2_000:])
        client.read(PRODUCE, 9)
        assert served.taken == [1, 500_000]


def test_a_large_request_that_waits_for_its_answer_is_not_closed_for_the_next_one_behind_it():
    """A producer that does not wait for answers has always begun its next request."""
    with serving(memory=1_000_000) as served:
        pipelining = served.client()
        pipelining.sock.sendall(request_bytes(produce(3_000_000, timeout_ms=1), 9, 1))
        answer = served.parked.get()
        pipelining.sock.sendall(produce_frame(500_000)[:1_000])
        channels = served.server.processors[0].channels
        wait_until(served.server, lambda: [c for c in list(channels.values()) if c._chunks])
        other, large = served.client(), produce_frame(500_000)
        other.sock.sendall(large[:100_000])
        wait_until(served.server, lambda: served.pool.blocker is not None)
        served.let_pass(2_000)
        served.let_pass(20_000)
        assert served.connections == 2
        answer()
        pipelining.read(PRODUCE, 9)
        other.sock.sendall(large[100_000:])
        other.read(PRODUCE, 9)


def test_who_waits_for_an_answer_leaves_his_turn_to_be_read_on_to_others():
    with serving(memory=1_000_000) as served:
        served.pool.charge(2_000_000)  # requests that are in flight hold it
        pipelining, large = served.client(), produce_frame(500_000)
        pipelining.sock.sendall(request_bytes(produce(1, timeout_ms=1), 9, 1) + large[:1_000])
        answer = served.parked.get()
        pipelining.sock.sendall(large[1_000:2_000])
        wait_until(served.server, lambda: served.pool._overdrawn is not None)
        other = served.client()
        other.sock.sendall(large[:100_000])
        wait_until(served.server, lambda: served.pool.blocker is not None)
        served.let_pass(2_000)
        other.sock.sendall(large[100_000:])
        other.read(PRODUCE, 9)
        answer()
        pipelining.read(PRODUCE, 9)
        pipelining.sock.sendall(large[2_000:])
        pipelining.read(PRODUCE, 9)
        assert served.taken == [1, 500_000, 500_000]


def test_who_cannot_be_read_on_when_there_is_room_is_closed(monkeypatch):
    with serving(memory=1_000_000) as served:
        hostile = served.read_on()
        unlucky = served.client()
        unlucky.sock.sendall(produce_frame(500_000)[:100_000])
        wait_until(served.server, lambda: served.pool.blocker is not None)
        (processor,) = served.server.processors
        monkeypatch.setattr(processor, "_poller", Full(processor._poller))
        hostile.close()
        assert unlucky.is_closed()
        wait_until(served.server, lambda: served.pool.available == 1_000_000)
        assert served.connections == 0


def test_a_wait_for_memory_ends_when_the_one_before_leaves():
    pool = MemoryPool(100)
    woken = []
    pool.charge(100)
    assert pool.may_read("first", lambda: woken.append("first"))
    assert pool.may_read("first", lambda: woken.append("first")), "it goes on to its end"
    assert not pool.may_read("second", lambda: woken.append("second"))
    assert not pool.may_read("third", lambda: woken.append("third"))
    pool.charge(50)
    pool.release("first", 50)
    assert woken == ["second"], "one at a time while nothing is left"
    assert not pool.may_read("third", lambda: woken.append("third"))
    pool.release("second", 0)
    assert woken == ["second", "third"], "its turn is taken even if it never asked again"
    pool.release("third", 100)
    assert pool.available == 100


def test_a_wait_that_is_given_up_is_not_woken():
    pool = MemoryPool(100)
    woken = []
    pool.charge(200)
    assert pool.may_read("first", lambda: woken.append("first"))
    assert not pool.may_read("second", lambda: woken.append("second"))
    pool.release("second", 0)
    pool.release("first", 200)
    assert woken == []


@pytest.mark.parametrize("count", [0, 1, 1 << 40])
def test_without_a_bound_everybody_reads(count):
    pool = MemoryPool(-1)
    pool.charge(count)
    assert pool.may_read("one", lambda: None)
    assert pool.may_read("two", lambda: None)
    assert not pool.is_exhausted


def test_large_requests_of_random_sizes_leave_no_memory_behind():
    with serving(memory=2_000_000) as served:
        client = served.client()
        for _ in range(30):
            client.ask(produce(int.from_bytes(os.urandom(2)) * 12), 9)
        assert served.pool.available == 2_000_000


def test_readers_who_go_on_keep_their_answers_however_many_share_an_address():
    """Who only asks comes from many addresses, each with less than those behind one router."""
    unread = UnreadAnswers(20_000_000)
    honest = [Unread("10.0.0.1", 3_000_000, 500, f"honest {n}") for n in range(4)]
    hostile = [Unread(f"10.0.1.{n}", 5_000_000, 30_000, f"hostile {n}") for n in range(5)]
    gone = unread.too_much(0, honest + hostile)
    assert len(gone) == 4
    assert set(gone) < {one.holder for one in hostile}


def test_who_comes_again_and_again_is_dearer_than_one_slow_reader():
    unread = UnreadAnswers(20_000_000)
    slow = Unread("10.0.0.1", 1_500_000, 10_000, "slow")
    flood = [Unread("10.0.0.2", 1_500_000, 1_000, n) for n in range(20)]
    gone = unread.too_much(0, [slow, *flood])
    assert len(gone) == 8
    assert "slow" not in gone


def test_who_must_go_is_found_soon_among_many_addresses():
    """A network thread looks for them; addresses of IPv6 cost an attacker nothing."""
    unread = UnreadAnswers(10_000)
    held = [Unread(f"2001:db8::{n:x}", 1, 1, n) for n in range(30_000)]
    began_s = time.process_time()
    assert len(unread.too_much(0, held)) == 20_000
    assert time.process_time() - began_s < 5


def test_unread_answers_of_all_threads_have_one_bound():
    unread = UnreadAnswers(10)
    assert unread.too_much(0, [Unread("a", 6, 1, "first")]) == []
    assert unread.too_much(1, [Unread("b", 6, 2, "second")]) == ["second"]
    assert unread.too_much(1, []) == []
    assert unread.too_much(0, [Unread("a", 6, 3, "first")]) == []
    assert UnreadAnswers(-1).too_much(0, [Unread("a", 1 << 40, 1, "first")]) == []
