"""A network that loses, delays, repeats and cuts, and the broker's seams to it.

One call is a request and its answer. Either may be lost, and the caller then hears nothing until
its timeout; either may be late, so that calls overtake one another; one on its way between nodes
may come twice where repeating is possible (raft's, the controller's). A link that is cut loses what
is sent over it in that direction. Who asks a dead process is refused at once.

Requests of one kind can be held on their way from one node to another (`hold`), as a connection
does whose packets come late: they are let go in the order they were sent, long after their sender
has given them up and asked again on another connection.

Requests of clients arrive before their timeout or never: a broker's answer to a later request on
another connection says nothing about an earlier one that is still under way, in Kafka too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from replication.controller.context import ControllerContext
from replication.following.fetcher import ReplicaFetcher
from replication.raft.events import ProbeVersions, VersionsReply
from server.coordinator.transactions.state import BUMPS_EPOCHS
from server.handlers import BROKER_APIS, offsets, produce
from server.handlers import fetch as handlers
from server.network.error_responses import error_response
from server.network.request_context import RequestContext
from server.peers.call import PeerError, always
from storage.open_files import FileSlice
from tests.server.wire_client import request_bytes, responses_in
from tests.sim.world import World
from wire.errors import ErrorCode, KafkaError
from wire.frame import REQUEST_BYTES_MIN, SIZE_BYTES
from wire.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from wire.messages.share import WriteShareGroupStateRequest
from wire.messages.transactions import WriteTxnMarkersRequest

if TYPE_CHECKING:
    from tests.sim.node import SimNode

CLIENT = 0
_RESPONSES: dict[type, type[Any]] = {
    FetchRequest: FetchResponse,
    ListOffsetsRequest: ListOffsetsResponse,
}
Reply = Callable[[Any], None]
Link = tuple[type | None, int, int]
"""A kind of request, from one node to another."""
_APART_MS = 10


class Network:
    """See the module. Probabilities and delays may be changed at any time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: dict[int, SimNode] = {}
        self.cut: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.repeat = 0.0
        self.slow = 0.0
        self.slow_ms = 400
        self.messages = 0
        self.held: dict[Link, list[Callable[[], object]]] = {}
        self.arrived: Link | None = None
        """The request whose handling began last."""

    def hold(self, kind: type, source_id: int, target_id: int) -> None:
        """Let no such request arrive until `release`."""
        self.held.setdefault((kind, source_id, target_id), [])

    def release(self, link: Link | None = None) -> None:
        """Let what was held arrive, one after the other; all of it if no link is named."""
        for one in list(self.held) if link is None else [link]:
            for number, arrive in enumerate(self.held.pop(one, ())):
                self.world.after(self.delay_ms() + number * _APART_MS, arrive)

    def release_last(self, link: Link) -> None:
        """Let only the newest arrive: its sender still waits for the answer."""
        self.world.after(self.delay_ms(), self.held[link].pop())

    def delay_ms(self, limit_ms: int | None = None) -> int:
        world = self.world
        if self.slow and world.random.random() < self.slow:
            high = self.slow_ms if limit_ms is None else min(self.slow_ms, limit_ms)
            return world.between(5, max(high, 5))
        return world.between(1, 3)

    def call(
        self,
        source: SimNode | None,
        target_id: int,
        serve: Callable[[SimNode, Reply], object],
        answered: Callable[[Any], object],
        timeout_ms: int,
        *,
        can_repeat: bool = False,
        needs_broker: bool = False,
        kind: type | None = None,
    ) -> None:
        """Have `serve` run at the target; `answered` gets its reply or, without one, None; once."""
        world = self.world
        source_id = CLIENT if source is None else source.node_id
        asked_by = 0 if source is None else source.incarnation
        self.messages += 1
        finish = self._finisher(source, asked_by, answered)

        def back(answer: Any) -> None:
            if not self._is_lost(target_id, source_id):
                world.after(
                    self.delay_ms(), lambda: self._arrive(target_id, source_id, finish, answer)
                )

        def arrive() -> None:
            if (source_id, target_id) in self.cut:
                return
            target = self.nodes[target_id]
            if not target.is_up or (needs_broker and not target.is_serving):
                back(None)
                return
            self.arrived = kind, source_id, target_id
            target.do(lambda: serve(target, back), target.incarnation)

        limit_ms = timeout_ms // 3 if source is None else None
        held = self.held.get((kind, source_id, target_id)) if self.held else None
        if held is not None:
            held.append(arrive)
        elif not self._is_lost(source_id, target_id):
            world.after(self.delay_ms(limit_ms), arrive)
            if can_repeat and world.chance(self.repeat):
                world.after(self.delay_ms(limit_ms), arrive)
        world.after(timeout_ms, lambda: finish(None))

    @staticmethod
    def _finisher(
        source: SimNode | None, asked_by: int, answered: Callable[[Any], object]
    ) -> Reply:
        """Tells the caller once: the answer, or that there will be none."""
        is_done = False

        def finish(answer: Any) -> None:
            nonlocal is_done
            if is_done:
                return
            is_done = True
            if source is None:
                answered(answer)
            else:
                source.do(lambda: answered(answer), asked_by)

        return finish

    def _is_lost(self, source_id: int, target_id: int) -> bool:
        return (source_id, target_id) in self.cut or self.world.chance(self.loss)

    def _arrive(self, source_id: int, target_id: int, finish: Reply, answer: Any) -> None:
        if (source_id, target_id) not in self.cut:
            finish(answer)


class SimRaftTransport:
    """The raft driver's transport."""

    def __init__(self, network: Network, node: SimNode) -> None:
        self._network = network
        self.node = node

    def send(
        self, to: Any, request: Any, on_answer: Callable[[Any], None], timeout_ms: int
    ) -> None:
        def serve(target: SimNode, reply: Reply) -> None:
            if isinstance(request, ProbeVersions):
                reply(VersionsReply(ErrorCode.NONE, (0, 1)))
            else:
                target.raft.handle(request, reply)

        self._network.call(
            self.node, to.port, serve, on_answer, timeout_ms, can_repeat=True
        )  # fmt: skip


class SimPeers:
    """The controller channel's way to other controllers (PeerClient)."""

    def __init__(self, network: Network, node: SimNode) -> None:
        self._network = network
        self._node = node

    def send(
        self,
        peer: Any,
        request: Any,
        version: int,
        response_class: type[Any],
        on_complete: Callable[[Any], None],
        *,
        timeout_ms: int,
        channel: str,
        is_wanted: Callable[[], bool] = always,
    ) -> None:
        del channel, is_wanted  # nothing waits for its turn here
        data = b"".join(request.encode(version))

        def serve(target: SimNode, reply: Reply) -> None:
            controller = target.controller
            if controller is None:
                reply(None)
                return

            def respond(answer: Any) -> None:
                if not isinstance(answer, Exception):
                    answer = response_class.decode(b"".join(answer.encode(version)), version)
                reply(answer)

            asked = ControllerContext(api_version=version)
            controller.submit(type(request).decode(data, version), respond, context=asked)

        def answered(answer: Any) -> None:
            on_complete(PeerError("no answer") if answer is None else answer)

        self._network.call(
            self._node,
            peer.port,
            serve,
            answered,
            min(timeout_ms, 2_000),
            can_repeat=True,
            kind=type(request),
        )


class SimBrokers:
    """A broker's way to other brokers (PeerClient). What a process was asked while it stood still
    it does later, when whoever asked has given up and asked again: requests come twice, and late.
    """

    def __init__(self, network: Network, node: SimNode) -> None:
        self._network = network
        self._node = node

    def send(
        self,
        peer: Any,
        request: Any,
        version: int,
        response_class: type[Any],
        on_complete: Callable[[Any], None],
        *,
        timeout_ms: int,
        channel: str,
        is_wanted: Callable[[], bool] = always,
    ) -> None:
        del channel, is_wanted
        kind = type(request)
        data = b"".join(request.encode(version))
        source, incarnation = self._node, self._node.incarnation

        def again_for(target: SimNode) -> Callable[[], None]:
            return lambda: serve_api(target, kind, data, version, _nobody)

        def serve(target: SimNode, reply: Reply) -> None:
            asked = kind.decode(data, version)
            if kind is WriteTxnMarkersRequest:
                check = target.cluster.check.transactions
                if check.is_unfair(source, incarnation, asked):
                    return
                check.markers_asked_for(asked)
                self._echo(asked, target, again_for(target))
            elif kind is WriteShareGroupStateRequest:
                self._come_late(target, again_for(target))
            serve_api(target, kind, data, version, reply)

        def answered(answer: Any) -> None:
            if answer is None:
                on_complete(PeerError("no answer"))
            else:
                on_complete(response_class.decode(answer, version))

        self._network.call(
            self._node,
            peer.port,
            serve,
            answered,
            timeout_ms,
            can_repeat=True,
            needs_broker=True,
            kind=kind,
        )

    def _echo(
        self, asked: WriteTxnMarkersRequest, target: SimNode, again: Callable[[], None]
    ) -> None:
        """A copy of the request lies about until the next transaction of its producer is open, the
        worst of moments, which chance hardly ever finds (TX-60). Not below version 2, see
        `Transactions.is_unfair`."""
        network, incarnation = self._network, target.incarnation
        if any(marker.transaction_version < BUMPS_EPOCHS for marker in asked.markers):
            return
        if network.world.chance(target.options.echoes):
            marker = asked.markers[0]
            target.cluster.check.transactions.echoes[marker.producer_id, marker.producer_epoch] = (
                lambda: network.world.after(
                    network.delay_ms(), lambda: target.do(again, incarnation)
                )
            )

    def _come_late(self, target: SimNode, again: Callable[[], None]) -> None:
        """A copy of the request comes when its sender may have gone on."""
        world, incarnation = self._network.world, target.incarnation
        if world.chance(target.options.echoes):
            world.after(world.between(100, 2_000), lambda: target.do(again, incarnation))


def _nobody(_answer: Any) -> None:
    """Takes an answer that nobody waits for."""


class SimRunner:
    """Makes a fetcher's turns in virtual time: request, some time on the wire, answer."""

    def __init__(self, network: Network, node: SimNode, fetcher: ReplicaFetcher) -> None:
        self._network = network
        self._node = node
        self._incarnation = node.incarnation
        self._fetcher = fetcher
        self._number = 0  # of the exchange that is awaited; an answer to another is late
        self._asked_ms: int | None = None
        self._is_stopped = False
        self.wake()

    def wake(self) -> None:
        """As FetcherThread: what is under way for a while is not waited for."""
        world = self._network.world
        if self._asked_ms is not None and world.ms - self._asked_ms >= 10:
            self._asked_ms = None
            self._number += 1
            self._fetcher.handle_interruption()
        self._later(self._node.lag_ms())

    def _later(self, delay_ms: int) -> None:
        self._network.world.after(delay_ms, lambda: self._node.do(self._turn, self._incarnation))

    def shutdown(self) -> None:
        self._is_stopped = True

    def _turn(self) -> None:
        if self._asked_ms is not None or self._is_stopped:
            return
        request = self._fetcher.next_request()
        if request is None:
            if self._fetcher.wake_ms is not None:
                self._later(max(self._fetcher.wake_ms - self._node.clock.now_ms(), 1))
            return
        self._asked_ms = self._network.world.ms
        self._number += 1
        number = self._number
        version = type(request).versions[1]
        data = encoded(request, version)

        def serve(target: SimNode, reply: Reply) -> None:
            serve_data(target, type(request), data, version, reply)

        self._network.call(
            self._node,
            self._fetcher.leader_id,
            serve,
            lambda out: self._answered(number, type(request), out),
            self._node.options.fetch_timeout_ms,
            needs_broker=True,
            kind=type(request),
        )

    def _answered(self, number: int, kind: type[Any], out: bytes | None) -> None:
        if number != self._number or self._asked_ms is None or self._is_stopped:
            return
        self._asked_ms = None
        if out is None:
            self._fetcher.handle_failure(TimeoutError("no answer"))
        else:
            self._fetcher.handle_response(_RESPONSES[kind].decode(out, kind.versions[1]))
        self._turn()


def context(node: SimNode, version: int, respond: Callable[[Any], None]) -> Any:
    """What a handler is given."""
    return SimpleNamespace(
        broker=node,
        api_version=version,
        received_ms=node.clock.now_ms(),
        client_id="sim",
        listener_name="PLAINTEXT",
        respond=respond,
        park=lambda operation: None,
        exempt=lambda: None,
        close=lambda: None,  # what was refused without acks, or could not be answered
        fetch_bytes_max=RequestContext.fetch_bytes_max,
    )


def serve_api(node: SimNode, kind: type[Any], data: bytes, version: int, reply: Reply) -> None:
    """Any request to a broker, as the dispatch would run it; the answer as bytes."""
    asked = kind.decode(data, version)

    def respond(response: Any) -> None:
        reply(encoded(response, version))

    def respond_error(request: Any, code: int, message: str | None = None) -> None:
        respond(error_response(request, version, code, message))

    ctx = context(node, version, respond)
    ctx.respond_error = respond_error
    try:
        response = BROKER_APIS[kind.api_key].load()(ctx, asked)
    except KafkaError as error:
        respond_error(asked, error.code)
        return
    if response is not None:
        respond(response)


def serve_data(node: SimNode, kind: type[Any], data: bytes, version: int, reply: Reply) -> None:
    """Fetch or ListOffsets as the dispatch would run it."""

    def respond(response: Any) -> None:
        reply(encoded(response, version))

    handle: Any = handlers.fetch if kind is FetchRequest else offsets.list_offsets
    try:
        response = handle(context(node, version, respond), kind.decode(data, version))
    except KafkaError as error:
        response = FetchResponse(error_code=error.code, responses=[])
        if kind is not FetchRequest:
            reply(None)
            return
    if response is not None:
        respond(response)


def serve_produce(
    node: SimNode, requests: list[ProduceRequest], version: int, reply: Reply
) -> None:
    """Produce requests that wait in line on a connection, as its request channel serves them: those
    that can be together, and none before the answers to those before it. `reply` gets one after
    the other."""
    if not requests:
        return
    frames = [request_bytes(request, version, at, None) for at, request in enumerate(requests)]

    left = list(requests)

    def respond(*responses: ProduceResponse) -> None:
        answer(*responses)
        serve_produce(node, left, version, reply)

    def answer(*responses: ProduceResponse) -> None:
        for response in responses:
            del left[0]
            reply(response)

    ctx = context(node, version, respond)
    ctx.correlation_id = 0
    ctx.send_early = lambda parts: answer(*_produce_responses(b"".join(parts), version))
    ctx.send_parts = lambda parts: respond(*_produce_responses(b"".join(parts), version))
    if not produce.produce_together(ctx, frames, SIZE_BYTES + REQUEST_BYTES_MIN + 1):
        produce.produce(ctx, requests[0])


def _produce_responses(data: bytes, version: int) -> Iterator[ProduceResponse]:
    return (response for _, response in responses_in(data, ProduceRequest.api_key, version))


def encoded(message: Any, version: int) -> bytes:
    """A message's body, with what it sends from files read in."""
    return b"".join(
        part.read() if isinstance(part, FileSlice) else part for part in message.encode(version)
    )
