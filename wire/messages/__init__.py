"""Kafka's messages and internal records, one module for each area of the protocol.

    data cluster groups transactions admin security quorum envelope share
    streams                                                                 requests and responses
    groups_records transactions_records share_records metadata_records
    raft_records consumer_protocol                                          what is kept in logs

The area's word nearly always names its handlers (server.handlers.quorum) and its tests, too.
Importing one area leaves the others alone: a broker imports what it first serves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wire.schema import Message, Request, Response

# Which area declares which api keys.
AREAS: dict[str, tuple[int, ...]] = {
    "data": (0, 1, 2, 21, 23),
    "cluster": (3, 18, 60, 75),
    "groups": (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69),
    "transactions": (22, 24, 25, 26, 27, 28, 61, 65, 66),
    "admin": (19, 20, 32, 33, 34, 35, 37, 43, 44, 45, 46, 48, 49, 57, 64, 71, 72, 74),
    "security": (17, 29, 30, 31, 36, 38, 39, 40, 41, 50, 51),
    "quorum": (52, 53, 54, 55, 56, 59, 62, 63, 67, 70, 73, 80, 81, 82),
    "envelope": (58,),
    "share": (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    "streams": (88, 89),
}
# Modules of internal records.
RECORD_MODULES = (
    "groups_records",
    "transactions_records",
    "share_records",
    "metadata_records",
    "raft_records",
    "consumer_protocol",
)
_AREA_OF = {api_key: area for area, api_keys in AREAS.items() for api_key in api_keys}


def request_class(api_key: int) -> type[Request]:
    """The request of an API, its area imported if need be; KeyError for an unknown key."""
    from wire.schema import REQUESTS

    if api_key not in REQUESTS:
        import_module("wire.messages." + _AREA_OF[api_key])
    return REQUESTS[api_key]


def response_class(api_key: int) -> type[Response]:
    """The response of an API, its area imported if need be; KeyError for an unknown key."""
    from wire.schema import RESPONSES

    if api_key not in RESPONSES:
        import_module("wire.messages." + _AREA_OF[api_key])
    return RESPONSES[api_key]


def all_messages() -> list[type[Message]]:
    """Every request, response and internal record; imports all areas (tests and tools only)."""
    from wire.schema import Message

    found: list[type[Message]] = []
    for module in (*AREAS, *RECORD_MODULES):
        names = vars(import_module("wire.messages." + module))
        found += [
            value
            for value in names.values()
            if isinstance(value, type)
            and issubclass(value, Message)
            and value.__module__.endswith("." + module)
        ]
    return found


def find(name: str) -> list[type[Message]]:
    """Request and response of an API ("Produce"), or the one class of that name; else KeyError."""
    wanted = (name, name + "Request", name + "Response")
    found = [cls for cls in all_messages() if cls.__name__ in wanted]
    if not found:
        raise KeyError(name)
    return found
