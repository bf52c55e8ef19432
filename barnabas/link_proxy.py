"""A TCP proxy between the nodes of a cluster that cuts and delays links, one direction at a time.

What: `LinkProxy` runs a process that listens once for each (node, listener) and passes bytes on to
it; `cut("1", "2")` holds back what node 1 sends to node 2 until `heal()`, `delay` slows it down.
Why: network namespaces need root and one address a node; this needs neither, and can cut one way.
How: who opened a connection is told by the client id in its first frame (the header's layout is the
same in all versions: size, key, version, correlation id, nullable client id); a connection that no
node opened belongs to "client". What is held back is not lost: it arrives after the heal, also when
its sender has closed the connection since, as TCP's retransmissions would. So a healed partition
brings back old requests, which is what a cluster must bear. The process is one thread and one
selector, apart from the test's own, whose clients would slow it down.
Duties of the caller: advertise the proxy's addresses (`address(node, listener)`) as the nodes' own.
Standard library only: it runs by itself, `python link_proxy.py TARGETS PORTS`.
`Links` and `source_of` are pure.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

CLIENT = "client"
UNKNOWN = ""

_HELD_BYTES_MAX = 4 << 20
_READ_BYTES = 1 << 16
_FRAME_BYTES_MAX = 100 << 20  # Kafka's socket.request.max.bytes: what says more speaks no Kafka
_HEAD = struct.Struct(">ihhih")  # size, API key, version, correlation id, length of the client id
# Kafka's names (KafkaRaftManager, ReplicaFetcherManager, NodeToControllerChannelManager) and ours.
# Who has a number first, and more behind it, is a client.
_NODE = re.compile(r"(?:raft-client|broker|controller)-(\d+)(?:-.*)?\Z|(\d+)\Z")


def source_of(data: bytes) -> str:
    """Which node sent this first frame; CLIENT when none did, UNKNOWN while too little has come.

    What begins no frame (a TLS hello) is a client's: nothing waits for a name in it.
    """
    if len(data) < _HEAD.size:
        return UNKNOWN
    size, _key, _version, _correlation_id, length = _HEAD.unpack_from(data)
    if not 0 <= length <= size <= _FRAME_BYTES_MAX:
        return CLIENT
    name = data[_HEAD.size : _HEAD.size + length]
    if len(name) < length:
        return UNKNOWN
    found = _NODE.match(name.decode("utf-8", "replace"))
    return found[found.lastindex or 0] if found else CLIENT


class Links:
    """Which links are cut or slow, by sender and receiver. Pure."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._delay_s: dict[tuple[str, str], float] = {}

    def cut(self, sender: str, receiver: str) -> None:
        self._cut.add((sender, receiver))

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        self._delay_s[sender, receiver] = seconds

    def heal(self) -> None:
        self._cut.clear()
        self._delay_s.clear()

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cut

    def delay_of(self, sender: str, receiver: str) -> float:
        return self._delay_s.get((sender, receiver), 0.0)


class LinkProxy:
    """The process, seen from its user. `targets`: for each node, the ports of its listeners;
    `ports`: where the proxy listens for each of them, a free port where nothing is said.
    """

    def __init__(
        self,
        targets: dict[str, dict[str, int]],
        ports: dict[str, dict[str, int]] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                os.path.abspath(__file__),
                json.dumps(targets),
                json.dumps(ports or {}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is for the parent
        )
        answer = self._answer()
        if "problem" in answer:
            from barnabas.process import BrokerError  # not in the process, which knows no package

            self.close()
            raise BrokerError(f"the link proxy did not start: {answer['problem']}")
        self._ports: dict[str, dict[str, int]] = answer["ports"]

    def address(self, node: str, listener: str) -> str:
        return f"127.0.0.1:{self._ports[node][listener]}"

    def cut(self, links: Iterable[tuple[str, str]]) -> None:
        """Hold back what the first of each pair sends to the second."""
        self._ask("cut", list(links))

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        self._ask("delay", [sender, receiver, seconds])

    def heal(self) -> None:
        """All links are whole again; what was held back is delivered."""
        self._ask("heal", None)

    def sources(self) -> dict[str, list[str]]:
        """For each listener, "source target" of every connection so far."""
        found: dict[str, list[str]] = self._ask("sources", None)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, verb: str, argument: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, argument]).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the link proxy ended with {self._process.wait()}")
        return json.loads(line)


# ---- the process


class _Direction:
    """One way through a connection: what came, when each piece is due, and where it goes."""

    __slots__ = ("ended", "held", "receiver", "sender", "size", "source", "target")

    def __init__(self, source: socket.socket, sender: str, receiver: str) -> None:
        self.source = source
        self.target: socket.socket | None = None
        self.sender, self.receiver = sender, receiver
        self.held: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.ended = False  # the source has closed its side

    def take(self, data: bytes, due_s: float) -> None:
        self.held.append((due_s, data))
        self.size += len(data)

    def drop(self) -> None:
        self.held.clear()
        self.size = 0

    def move(self, now_s: float) -> bool:
        """Send what is due; False when the receiver is gone."""
        assert self.target is not None
        try:
            while self.held and self.held[0][0] <= now_s:
                due, data = self.held[0]
                count = self.target.send(data)
                self.size -= count
                if count < len(data):
                    self.held[0] = (due, data[count:])
                    return True
                self.held.popleft()
        except OSError as error:  # a connection that is being made takes nothing yet
            return error.errno in (errno.EAGAIN, errno.ENOTCONN)
        if self.ended and not self.held:
            with contextlib.suppress(OSError):
                self.target.shutdown(socket.SHUT_WR)
        return True


class _Connection:
    __slots__ = ("back", "forward", "listener", "node")

    def __init__(self, client: socket.socket, node: str, listener: str) -> None:
        self.node, self.listener = node, listener
        self.forward = _Direction(client, UNKNOWN, node)
        self.back: _Direction | None = None  # once the node is connected

    def directions(self) -> list[_Direction]:
        return [self.forward] if self.back is None else [self.forward, self.back]


class _Proxy:
    def __init__(
        self, targets: dict[str, dict[str, int]], ports: dict[str, dict[str, int]]
    ) -> None:
        self._targets = targets
        self._links = Links()
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._waiting: set[_Connection] = set()  # have bytes that are not due yet
        self._sources: dict[str, set[str]] = {}
        self.ports: dict[str, dict[str, int]] = {}
        for node, listeners in targets.items():
            for listener in listeners:
                server = socket.create_server(
                    ("127.0.0.1", ports.get(node, {}).get(listener, 0)), backlog=256
                )
                server.setblocking(False)
                self._selector.register(server, selectors.EVENT_READ, (node, listener))
                self.ports.setdefault(node, {})[listener] = server.getsockname()[1]

    def run(self) -> None:
        commands = sys.stdin.buffer.raw  # type: ignore[union-attr]
        os.set_blocking(commands.fileno(), False)
        self._selector.register(commands, selectors.EVENT_READ, None)
        _say({"ports": self.ports})
        unread = b""
        while True:
            touched: set[_Connection] = set()
            for key, _ in self._selector.select(0.002 if self._waiting else None):
                if key.data is None:
                    chunk = commands.read()
                    if not chunk:
                        return
                    *lines, unread = (unread + chunk).split(b"\n")
                    for line in lines:
                        self._obey(*json.loads(line))
                    touched |= self._connections
                elif isinstance(key.data, tuple):
                    self._accept(key.fileobj, *key.data)
                else:
                    self._read(key.data, key.fileobj)
                    touched.add(key.data)
            for connection in touched | self._waiting:
                self._pump(connection)

    def _obey(self, verb: str, argument: Any) -> None:
        answer: Any = True
        match verb:
            case "cut":
                for sender, receiver in argument:
                    self._links.cut(sender, receiver)
            case "delay":
                self._links.delay(*argument)
            case "heal":
                self._links.heal()
            case "sources":
                answer = {listener: sorted(found) for listener, found in self._sources.items()}
        _say(answer)

    def _accept(self, server: Any, node: str, listener: str) -> None:
        try:
            client, _peer = server.accept()
        except OSError:
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, node, listener)
        self._connections.add(connection)
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection, sock: Any) -> None:
        for direction in connection.directions():
            if direction.source is sock and not direction.ended:
                break
        else:
            return
        try:
            data = sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            direction.ended = True
            return
        delay_s = self._links.delay_of(direction.sender, direction.receiver)
        direction.take(data, time.monotonic() + delay_s if delay_s else 0.0)
        if direction.sender == UNKNOWN:
            direction.sender = source_of(b"".join(data for _, data in direction.held))
            if direction.sender != UNKNOWN:
                seen = self._sources.setdefault(connection.listener, set())
                seen.add(f"{direction.sender} {connection.node}")

    def _connect(self, connection: _Connection) -> bool:
        """Open the way to the node, when the first byte may travel it; False without a descriptor.

        Nothing waits for it: a node that is paused takes connections until its backlog is full.
        One that is not there ends them, as one does that closes them.
        """
        try:
            there = socket.socket()
        except OSError:
            return False
        forward = connection.forward
        there.setblocking(False)
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there.connect_ex(("127.0.0.1", self._targets[connection.node][connection.listener]))
        forward.target = there
        connection.back = _Direction(there, connection.node, forward.sender)
        connection.back.target = forward.source
        return True

    def _pump(self, connection: _Connection) -> None:
        """Move what may move, then ask the selector for what can happen next, or close."""
        if self._is_over(connection):
            self._close(connection)
            return
        now_s = time.monotonic()
        is_waiting = False
        wanted: dict[socket.socket, int] = {}
        for direction in connection.directions():
            if not direction.ended and direction.size < _HELD_BYTES_MAX:
                wanted[direction.source] = wanted.get(direction.source, 0) | selectors.EVENT_READ
            if direction.held and not self._links.is_cut(direction.sender, direction.receiver):
                if direction.held[0][0] > now_s:
                    is_waiting = True
                elif direction.target is not None:
                    wanted[direction.target] = (
                        wanted.get(direction.target, 0) | selectors.EVENT_WRITE
                    )
        (self._waiting.add if is_waiting else self._waiting.discard)(connection)
        for direction in connection.directions():
            self._watch(connection, direction.source, wanted.get(direction.source, 0))

    def _is_over(self, connection: _Connection) -> bool:
        """After moving what may move: whether nothing can come of this connection any more."""
        forward = connection.forward
        if forward.sender == UNKNOWN:
            return forward.ended
        now_s = time.monotonic()
        if not self._links.is_cut(forward.sender, forward.receiver):
            if connection.back is None and not self._connect(connection):
                return True
            if not forward.move(now_s):
                forward.drop()  # the node is not there, which who asked hears by the way back
        back = connection.back
        if back is None or self._links.is_cut(back.sender, back.receiver):
            return False
        if not back.move(now_s):
            # Who opened it is gone. What it had sent before is still on its way.
            back.drop()
            forward.ended = True
        return back.ended and not back.held

    def _watch(self, connection: _Connection, sock: socket.socket, events: int) -> None:
        known = self._selector.get_map().get(sock)
        if known is None and events:
            self._selector.register(sock, events, connection)
        elif known is not None and not events:
            self._selector.unregister(sock)
        elif known is not None and known.events != events:
            self._selector.modify(sock, events, connection)

    def _close(self, connection: _Connection) -> None:
        for direction in connection.directions():
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(direction.source)
            direction.source.close()
        self._connections.discard(connection)
        self._waiting.discard(connection)


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _main(targets: str, ports: str) -> None:
    try:
        proxy = _Proxy(json.loads(targets), json.loads(ports))
    except OSError as error:  # somebody listens on one of the ports
        _say({"problem": error.strerror})
    else:
        proxy.run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
