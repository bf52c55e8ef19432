"""What stands before every handler costs a request: `python -m benchmarks.micro.guards`.

    quotas    all three of a client, none of them reached
    acls      10,000 access rules, what is asked being remembered
    cold      a question to 10,000 rules that nobody asked before

Each line is the difference to the same request without it, measured in turn with it: the best of
many short rounds. The first two have budgets of 2 and 3 us in `python -m benchmarks.micro`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from benchmarks.micro.requests import answering, frames
from replication.metadata.image import MetadataDelta
from server.network.metering import ClientQuotas
from server.security.authorizer import StandardAuthorizer
from tests.server.handler_support import Asked, image_of, topic_image
from wire.messages.metadata_records import AccessControlEntryRecord, ClientQuotaRecord

_ROUNDS, _TIMES = 60, 500
_RULES = 10_000
_QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
_TOPIC, _GROUP, _READ, _WRITE = 2, 3, 3, 4


def with_quotas() -> Asked:
    """Nobody will reach them."""
    quotas, asked = ClientQuotas(), answering()
    everybody = [ClientQuotaRecord.Entity(entity_type="user", entity_name=None)]
    quotas.update(
        ClientQuotaRecord(entity=everybody, key=key, value=1e12, remove=False) for key in _QUOTAS
    )
    asked.requests.measure(quotas.context)
    return asked


def authorizer() -> StandardAuthorizer:
    """Rules of a hundred users for their own resources, and three for what is asked here."""
    mine = ((_TOPIC, "t", _WRITE), (_TOPIC, "t", _READ), (_GROUP, "g", _READ))
    theirs = [(_TOPIC + n % 2, f"r{n}", _READ + n % 2) for n in range(_RULES - len(mine))]
    delta = MetadataDelta(image_of(topic_image("t")))
    for n, (kind, name, operation) in enumerate((*theirs, *mine)):
        is_mine = n >= len(theirs)
        delta.replay(
            AccessControlEntryRecord(
                id=n.to_bytes(16, "big"),
                resource_type=kind,
                resource_name=name,
                pattern_type=3 if is_mine or n % 3 else 4,
                principal="User:ANONYMOUS" if is_mine else f"User:u{n % 100}",
                host="*",
                operation=operation,
                permission_type=3,
            )
        )
    made = StandardAuthorizer()
    made.publish(delta, delta.apply(1, 1, 1))
    return made


def difference_us(costly: Callable[[], object], plain: Callable[[], object]) -> float:
    """What the one takes longer, in processor time of this thread."""
    best = {costly: float("inf"), plain: float("inf")}
    for _ in range(_ROUNDS):
        for action in best:
            begun = time.thread_time()
            for _ in range(_TIMES):
                action()
            best[action] = min(best[action], (time.thread_time() - begun) / _TIMES)
    return (best[costly] - best[plain]) * 1e6


def _asking(asked: Asked, frame: bytes) -> Callable[[], object]:
    channel: Any = asked.channel
    return partial(asked.requests.receive, channel, frame)


def pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Name -> a request with a guard, and the same without."""
    plain = answering()
    guards = {"quotas": with_quotas(), "acls": answering(authorizer())}
    return {
        f"{guard}, {name}": (_asking(asked, frame), _asking(plain, frame))
        for guard, asked in guards.items()
        for name, frame in frames().items()
    }


def main() -> None:
    for name, (costly, plain) in pairs().items():
        print(f"{name:34} {difference_us(costly, plain):6.2f} us")
    rules, numbers = authorizer(), count()

    def cold() -> bool:
        return rules.authorize("User:u1", "127.0.0.1", _READ, _TOPIC, f"x{next(numbers)}")

    print(f"{'cold':34} {difference_us(cold, lambda: next(numbers)):6.2f} us")


if __name__ == "__main__":
    main()
