"""DescribeClientQuotas, AlterClientQuotas: how much users and clients may use of a broker.

A broker describes the quotas of its own image; they are changed by the controller, and kept to by
`server.network.metering`, `server.network.limits` (connections) and
`replication.controller.mutation_quotas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.controller.configs import invalid_request
from replication.metadata.quota_entities import CLIENT_ID, IP, USER, Entity, names_of
from server.handlers.controller import pass_on
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from server.handlers.edges import AnyNode
    from server.network.request_context import RequestContext

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_Entry = DescribeClientQuotasResponse.Entry

_ORDER = ("consumer_byte_rate", "controller_mutation_rate", "request_percentage")
"""How values are told, the others behind: the order of Kafka's map when the byte rates and the
request percentage are set. No rule says so, but clients' tests know it."""


def alter_client_quotas(ctx: RequestContext[AnyNode], request: AlterClientQuotasRequest) -> None:
    """Set and remove quotas.

    Behaviour: entities fail alone; what is set counts for connections that are there.
    Versions:  all alike.
    Gaps:      -
    """
    pass_on(ctx, request)


def describe_client_quotas(
    ctx: RequestContext[AnyNode], request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """List the quotas of the entities that a filter means.

    Behaviour: strict leaves out entities with parts that the filter does not name. Those of this
               node's image, which may be some milliseconds old.
    Versions:  all alike.
    Gaps:      -
    """
    try:
        wanted = _filter(request)
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=int(error.code), error_message=error.detail, entries=None
        )
    found: dict[Entity, list[_Entry.Value]] = {}
    for (entity, key), record in ctx.broker.metadata.client_quotas.items():
        if _matches(names_of(entity), wanted, request.strict):
            found.setdefault(entity, []).append(_Entry.Value(key=key, value=record.value))
    return DescribeClientQuotasResponse(
        error_code=0,
        error_message=None,
        entries=[
            _Entry(
                entity=[
                    _Entry.Entity(entity_type=kind, entity_name=name)
                    for kind, name in names_of(entity).items()
                ],
                values=sorted(values, key=_place),
            )
            for entity, values in found.items()
        ],
    )


def _place(value: _Entry.Value) -> int:
    return _ORDER.index(value.key) if value.key in _ORDER else len(_ORDER)


def _filter(request: DescribeClientQuotasRequest) -> dict[str, tuple[int, str | None]]:
    """Kind -> how it is meant and the name. Raises KafkaError (ClientQuotasImage.describe)."""
    wanted: dict[str, tuple[int, str | None]] = {}
    for one in request.components:
        kind, match_type = one.entity_type, one.match_type
        if not kind or kind in wanted:
            raise invalid_request(
                "an entity type is empty, or appears more than once in the filter"
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match_type not in (_EXACT, _DEFAULT, _ANY):
            raise invalid_request(f"Unknown match type {match_type}")
        if (one.match is None) is (match_type == _EXACT):
            raise invalid_request("a match string goes with an exact match, and only with that")
        wanted[kind] = match_type, one.match
    if IP in wanted and len(wanted) > 1:
        raise invalid_request("an IP filter is not used with user or client id")
    return wanted


def _matches(
    names: dict[str, str | None], wanted: dict[str, tuple[int, str | None]], strict: bool
) -> bool:
    if strict and len(names) != len(wanted):
        return False
    for kind, (match_type, name) in wanted.items():
        if kind not in names or (match_type != _ANY and names[kind] != name):
            return False
    return True
