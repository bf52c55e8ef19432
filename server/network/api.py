"""What an API is: one entry of the registry (`server.handlers.APIS`).

Whatever is to be known of an API before one of its requests is decoded stands in its `Api`; the
dispatch table of each listener, ApiVersions, headers, what an Envelope may hold, which thread runs
it and what an authorizer asks are derived from it.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import partial, update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from server.network.once import name_once
from wire.frame import NEVER, request_header_version, response_header_version
from wire.messages import request_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wire.schema import Request, Response


_T = TypeVar("_T")


class Operation(IntEnum):
    """What somebody may be allowed to do; numbers are AclOperation's."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """What it is done to; numbers are ResourceType's."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Those that make sense for it (AclEntry.supportedOperations)."""
        return _OPERATIONS[self]

    @property
    def all_operations(self) -> int:
        """The same as bits, as `authorized_operations` of answers has them."""
        return sum(1 << operation for operation in self.operations)


_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_OPERATIONS = {
    Resource.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE,
        Operation.ALTER, *_CONFIGS,
    ),
    Resource.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE, *_CONFIGS),
    Resource.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION,
        *_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    Resource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip


class Cost(Enum):
    """Which thread may run a request of the API (see `server.network.request_channel`)."""

    SMALL = "cannot block, and takes well under a millisecond if the request is small"
    BLOCKS = "may wait for a disk or walk through much: always on a handler thread"


class Api:
    """One API as it is served on some listeners. `handle` is None until `load` imported its area;
    so are `is_costly`, `ordinary` and `together`, which few areas have.

    `versions`: lowest and highest served. `listeners`: "b" for brokers', "c" for controllers'.
    `advertised_from`: what ApiVersions tells as the lowest, if not the truth. `is_forwardable`: a
    broker may pass it on to the controller (ApiKeys.forwardable). `names_once`: what its request
    names twice is answered once (`server.network.once`). `operation` on `resource` is
    what its sender must be allowed, in the main (KafkaApis, ControllerApis); None: nothing.
    """

    __slots__ = (
        "advertised_from",
        "api_key",
        "area",
        "handle",
        "inline",
        "is_costly",
        "is_forwardable",
        "listeners",
        "max_version",
        "min_version",
        "name",
        "names_once",
        "operation",
        "ordinary",
        "request_class",
        "request_flexible",
        "resource",
        "response_flexible",
        "together",
    )

    request_class: type[Request]

    def __init__(
        self,
        api_key: int,
        name: str,
        area: str,
        versions: tuple[int, int],
        listeners: str = "b",
        cost: Cost = Cost.SMALL,
        may: tuple[Operation, Resource] | None = None,
        *,
        is_forwardable: bool = False,
        names_once: bool = False,
        advertised_from: int | None = None,
    ) -> None:
        """`area`: the module of its handler, and nearly always of its messages."""
        self.api_key = api_key
        self.name = name
        self.area = area
        self.min_version, self.max_version = versions
        self.listeners = listeners
        self.inline = cost is Cost.SMALL
        self.operation = may[0] if may else None
        self.resource = may[1] if may else None
        self.is_forwardable = is_forwardable
        self.names_once = names_once
        self.advertised_from = self.min_version if advertised_from is None else advertised_from
        self.handle: Callable[[Any, Any], Response | None] | None = None
        self.is_costly: Callable[[Any, Any], bool] | None = None
        self.ordinary: Callable[[Any, bytes, int], bool] | None = None
        self.together: Callable[[Any, Iterable[bytes], int], int] | None = None
        served = range(self.min_version, self.max_version + 1)
        self.request_flexible = next(
            (v for v in served if request_header_version(api_key, v) == 2), NEVER
        )
        """First version with tagged fields in the request header."""
        self.response_flexible = next(
            (v for v in served if response_header_version(api_key, v) == 1), NEVER
        )
        """First version with tagged fields in the response header."""

    @property
    def function_name(self) -> str:
        """The handler's name: the API's in snake_case."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")

    def load(self) -> Callable[[Any, Any], Response | None]:
        """Import the API's messages and handlers."""
        self.request_class = request_class(self.api_key)
        handlers = import_module(self.area)
        handle = self.prepared(getattr(handlers, self.function_name))
        if self.names_once:
            handle = update_wrapper(partial(_once, handle), getattr(handlers, self.function_name))
        self.is_costly = getattr(handlers, f"{self.function_name}_is_costly", None)
        ordinary = getattr(handlers, f"{self.function_name}_ordinary", None)
        self.ordinary = None if ordinary is None else self.prepared_ordinary(ordinary)
        together = getattr(handlers, f"{self.function_name}_together", None)
        self.together = None if together is None else self.prepared_ordinary(together)
        self.handle = handle  # last: another thread that sees it set sees the rest set
        return handle

    def prepared(self, handle: Callable[..., Any]) -> Callable[[Any, Any], Response | None]:
        """What dispatch calls: the handler itself, unless somebody is to be asked first."""
        return handle

    def prepared_ordinary(self, ordinary: Callable[..., _T]) -> Callable[[Any, Any, int], _T]:
        """The same of the short ways."""
        return ordinary

    def __repr__(self) -> str:
        return f"Api({self.name} {self.min_version}-{self.max_version})"


def _once(handle: Callable[[Any, Any], Response | None], ctx: Any, request: Any) -> Response | None:
    name_once(request)
    return handle(ctx, request)
