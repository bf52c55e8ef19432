"""Puts an authorizer between requests and their handlers.

What: a `GuardedApi` stands in a dispatch table for an API and asks first. Each request meets the
rule of its API (`server.handlers.access.rules`), which gives a verdict:

    None              everything is allowed: the handler runs as if nothing had been asked
    KafkaError        raised: nothing is, and everything is answered with that code
    a Response        nothing is, and this is the answer
    With(...)         the handler is asked with one more argument, and takes part; besides, a
                      function as below
    a function        the rule took what is denied out of the request: the handler answers the rest,
                      and the function completes that answer

Why a table and not a check in each handler: an API cannot be served without a rule
(`rules.guarded` raises when the node starts), what is denied never reaches a handler, so it cannot
be told apart from what is not there, and a node without authorizer runs not one instruction more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from replication.metadata.acl_filter import CLUSTER_NAME
from server.network.api import Api, Cost, Operation, Resource
from server.network.error_responses import error_response
from server.network.inner_context import InnerContext
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from server.network.request_context import RequestContext
    from server.security.authorizer import Authorizer
    from wire.schema import Request, Response

audit = logging.getLogger("kafka.authorizer.logger")
"""Kafka's name: refusals at INFO, the rest at DEBUG."""
_T = TypeVar("_T")

_NAME_SHOWN = 256
_REFUSALS_SHOWN = 100
"""Lines one request can write; the rest are counted. Clients choose how many names they send."""

DENIED: Mapping[Resource, tuple[ErrorCode, str]] = {
    Resource.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    Resource.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    Resource.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    Resource.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
}
"""Fixed texts: nothing of the request or of this node is in them (LK-1)."""


class With(NamedTuple):
    """The handler takes part: it is given one more argument."""

    argument: Any
    finish: Callable[[Any], Any] | None = None
    """What completes its answer, where the rule took something out of the request."""


Finish = Callable[[Any], Any]
"""Completes the answer to what was left of a request."""
Verdict = Finish | With | Any
"""None, a Response, a With or a Finish: see the module."""
Rule = Callable[["Access", Any], Verdict]


class Access:
    """What the sender of one request may do."""

    __slots__ = ("_authorize", "_authorizer", "_host", "_principal", "_refusals", "ctx")

    def __init__(self, authorizer: Authorizer, ctx: RequestContext[Any]) -> None:
        self._authorizer = authorizer
        self._authorize = authorizer.authorize
        self._principal, self._host = ctx.principal, ctx.peer_host
        self._refusals = 0
        self.ctx = ctx

    def sees(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Asked to choose what is shown: a no is nothing to report."""
        return self._authorize(self._principal, self._host, operation, resource, name)

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Asked since the request asks for it: a no stands in the audit log."""
        is_allowed = self._authorize(self._principal, self._host, operation, resource, name)
        if not is_allowed:
            self._refusals += 1
            if self._refusals <= _REFUSALS_SHOWN:
                self._report(logging.INFO, "Denied", operation, resource, name)
        elif audit.isEnabledFor(logging.DEBUG):
            self._report(logging.DEBUG, "Allowed", operation, resource, name)
        return is_allowed

    def must(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Raises KafkaError, for the whole request, with the code of the resource."""
        if not self.may(operation, resource, name):
            raise KafkaError(*DENIED[resource])

    def may_on_some(self, operation: Operation, resource: Resource) -> bool:
        """On at least one resource of the type, whichever there are."""
        return self._authorizer.authorize_some(self._principal, self._host, operation, resource)

    def operations(self, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """All that is allowed, as bits (AuthHelper.authorizedOperations)."""
        return sum(1 << one for one in resource.operations if self.sees(one, resource, name))

    def count_unreported(self) -> None:
        """Once a request has been asked about: how many refusals have no line of their own."""
        if self._refusals > _REFUSALS_SHOWN:
            audit.info(
                "Principal = %s is Denied %d times more from host = %s for request = %s",
                _escaped(self._principal),
                self._refusals - _REFUSALS_SHOWN,
                self._host,
                self.ctx.api.name,
            )

    def _report(
        self, level: int, verdict: str, operation: Operation, resource: Resource, name: str
    ) -> None:
        audit.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s"
            " for request = %s",
            _escaped(self._principal),
            verdict,
            operation.name,
            self._host,
            resource.name,
            _escaped(name),
            self.ctx.api.name,
        )


def _escaped(text: str) -> str:
    """On one line, and a short one, whatever a client called it (Z-10)."""
    return text[:_NAME_SHOWN].encode("unicode_escape").decode()


class LeftoverContext(InnerContext):
    """What is left of a request without what its sender may not do."""

    __slots__ = ("_finish",)

    def __init__(self, outer: RequestContext[Any], finish: Finish) -> None:
        super().__init__(outer, outer.api, outer.api_version, outer.correlation_id, outer.client_id)
        self._finish = finish

    def send(self, response: Response) -> None:
        self._outer.send(self._finish(response))

    def respond_error(self, request: Request, code: int, message: str | None = None) -> None:
        if code == ErrorCode.NOT_CONTROLLER:  # of the way, not of the request
            self._outer.respond_error(request, code, message)
        elif getattr(request, "acks", None) == 0:
            self._outer.close()
        else:
            self.respond(error_response(request, self.api_version, code, message))

    def no_response(self) -> None:
        """Produce with acks=0, of which a part was refused: only a close can say so."""
        self._outer.close()


class GuardedApi(Api):
    """An API that is asked for by people who may not."""

    __slots__ = ("_authorizer", "_rule")

    def __init__(self, api: Api, rule: Rule, authorizer: Authorizer) -> None:
        asks = api.operation is not None and api.resource is not None
        super().__init__(
            api.api_key,
            api.name,
            api.area,
            (api.min_version, api.max_version),
            api.listeners,
            Cost.SMALL if api.inline else Cost.BLOCKS,
            (api.operation, api.resource) if asks else None,  # type: ignore[arg-type]
            is_forwardable=api.is_forwardable,
            names_once=api.names_once,
            advertised_from=api.advertised_from,
        )
        self._rule = rule
        self._authorizer = authorizer

    def prepared(self, handle: Callable[..., Any]) -> Callable[[Any, Any], Response | None]:
        return partial(self._ask_first, handle)

    def prepared_ordinary(self, ordinary: Callable[..., _T]) -> Callable[[Any, Any, int], _T]:
        return partial(self._ask_within, ordinary)

    def _ask_first(
        self, handle: Callable[..., Any], ctx: RequestContext[Any], request: Request
    ) -> Any:
        access = Access(self._authorizer, ctx)
        try:
            verdict = self._rule(access, request)
            if isinstance(verdict, With):
                if verdict.finish is None:
                    return handle(ctx, request, verdict.argument)
                handle, verdict = partial(_taking_part, handle, verdict.argument), verdict.finish
        except KafkaError:
            ctx.exempt(is_allowed=False)
            raise
        finally:
            access.count_unreported()
        if verdict is None:
            return handle(ctx, request)
        if not callable(verdict):
            return verdict
        LeftoverContext(ctx, verdict).run(handle, request)
        return None

    def _ask_within(
        self, ordinary: Callable[..., _T], ctx: RequestContext[Any], frames: Any, pos: int
    ) -> _T:
        """The short way asks itself, and leaves what is not all allowed to the long way."""
        return ordinary(ctx, frames, pos, Access(self._authorizer, ctx).sees)


def _taking_part(handle: Callable[..., Any], argument: Any, ctx: Any, request: Request) -> Any:
    return handle(ctx, request, argument)
