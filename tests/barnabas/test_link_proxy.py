"""Who opened a connection is read from its first frame; a cut link holds one direction only."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from barnabas.link_proxy import CLIENT, UNKNOWN, LinkProxy, Links, source_of
from barnabas.process import BrokerError
from testkit.clients import raw
from testkit.wait import eventually


def frame(client: str, key: int = 52) -> bytes:
    return raw.frame(raw.header(key, 1, client=client) + b"body")


@pytest.mark.parametrize(
    ("client", "source"),
    [
        ("raft-client-2", "2"),
        ("broker-3-fetcher-0", "3"),
        ("broker-3-fetcher-0-leader-1", "3"),
        ("broker-11-to-controller-heartbeat", "11"),
        ("controller-4-to-controller-registration", "4"),
        ("1", "1"),
        ("rdkafka", CLIENT),
        ("my-broker-1", CLIENT),
        ("producer-1", CLIENT),
        ("1-orders", CLIENT),
        ("", CLIENT),
    ],
)
def test_the_client_id_of_the_first_frame_names_the_node(client: str, source: str) -> None:
    assert source_of(frame(client)) == source


def test_a_null_client_id_is_a_client() -> None:
    data = struct.pack(">ihhih", 100, 18, 3, 1, -1)
    assert source_of(data) == CLIENT


@pytest.mark.parametrize("chance", [b"\x00\x05", b"\x7f\xff", b"\x80\x00"])
def test_what_is_no_frame_is_a_clients(chance: bytes) -> None:
    """A TLS hello: where a frame has the length of its client id stand random bytes."""
    assert source_of(bytes.fromhex("1603010200010001fc030300") + chance * 16) == CLIENT


def test_every_part_of_the_head_is_too_little() -> None:
    whole = frame("raft-client-2")
    named = len(struct.pack(">ihhih", 0, 0, 0, 0, 0)) + len("raft-client-2")
    assert {source_of(whole[:count]) for count in range(named)} == {UNKNOWN}
    assert source_of(whole[:named]) == "2"


def test_a_cut_is_one_way_and_heal_ends_all() -> None:
    links = Links()
    links.cut("1", "2")
    links.delay("2", "1", 0.5)
    assert links.is_cut("1", "2")
    assert not links.is_cut("2", "1")
    assert links.delay_of("2", "1") == 0.5
    links.heal()
    assert not links.is_cut("1", "2")
    assert links.delay_of("2", "1") == 0.0


def test_a_port_that_somebody_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        with pytest.raises(BrokerError, match=f"the link proxy did not start: .*{port}"):
            LinkProxy({"1": {"REPLICATION": 9}}, {"1": {"REPLICATION": port}})


def test_a_node_that_takes_no_connection_holds_up_no_other() -> None:
    """One that is paused, when its backlog is full."""
    with (
        socket.create_server(("127.0.0.1", 0)) as node,
        socket.create_server(("127.0.0.1", 0), backlog=0) as paused,
        contextlib.ExitStack() as stack,
    ):
        ports = [one.getsockname()[1] for one in (node, paused)]
        proxy = LinkProxy({"1": {"REPLICATION": ports[0]}, "2": {"REPLICATION": ports[1]}})
        stack.callback(proxy.close)

        def sent(to: str) -> socket.socket:
            host, port = proxy.address(to, "REPLICATION").split(":")
            client = stack.enter_context(socket.create_connection((host, int(port)), 20))
            client.sendall(frame("broker-3"))
            return client

        waiting = [sent("2") for _ in range(3)]
        node.settimeout(2)
        paused.settimeout(20)
        sent("1")
        there = stack.enter_context(node.accept()[0])
        assert there.recv(1000) == frame("broker-3")
        # Nothing of what waits is lost.
        taken = [stack.enter_context(paused.accept()[0]) for _ in waiting]
        assert [one.recv(1000) for one in taken] == [frame("broker-3")] * len(waiting)


def test_a_node_that_is_not_there_ends_connections() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        proxy = LinkProxy({"1": {"REPLICATION": nobody.getsockname()[1]}})
        with contextlib.closing(proxy):
            host, port = proxy.address("1", "REPLICATION").split(":")
            with socket.create_connection((host, int(port)), 20) as client:
                client.sendall(frame("broker-3"))
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_cut_link_tells_no_end_before_it_is_healed(is_there: bool) -> None:
    """What a killed node's system says is held back like what the node said."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        node.settimeout(20)
        proxy = LinkProxy({"1": {"REPLICATION": node.getsockname()[1]}})
        stack.callback(proxy.close)
        proxy.cut([("1", "3")])
        if not is_there:
            node.close()
        host, port = proxy.address("1", "REPLICATION").split(":")
        client = stack.enter_context(socket.create_connection((host, int(port)), 20))
        client.sendall(frame("broker-3"))
        if is_there:
            with node.accept()[0] as there:
                assert there.recv(1000) == frame("broker-3")
        eventually(lambda: "3 1" in proxy.sources()["REPLICATION"])
        for _ in range(3):  # a turn of the proxy's each: it has seen the end
            proxy.sources()
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        proxy.heal()
        client.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
