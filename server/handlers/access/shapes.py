"""The shapes that most rules have: all or nothing, or item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from server.handlers.access.guard import DENIED, Access, Finish, Rule, Verdict
from server.network.api import Operation, Resource
from server.network.error_responses import error_response
from wire.schema import Response

_LABELS = (
    "name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name",
)  # fmt: skip

name_of: Callable[[Any], Any] = attrgetter("name")


def itself(item: str) -> str:
    """Items that are their own names."""
    return item


def whole(operation: Operation, resource: Resource, name: str | None = None) -> Rule:
    """All or nothing. `name`: the field that names the resource; None for the cluster."""

    def rule(access: Access, request: Any) -> None:
        if name is None:
            access.must(operation, resource)
        else:
            access.must(operation, resource, getattr(request, name))

    return rule


def whole_at_top(operation: Operation, resource: Resource, name: str | None = None) -> Rule:
    """All or nothing, of an API that says so once and names nothing it was asked about."""

    def rule(access: Access, request: Any) -> Verdict:
        subject = () if name is None else (getattr(request, name),)
        if access.may(operation, resource, *subject):
            return None
        return at_top(access, request, resource)

    return rule


def at_top(access: Access, request: Any, resource: Resource) -> Response:
    """The answer with one error code, and no items."""
    refused: Any = error_response(request, access.ctx.api_version, *DENIED[resource])
    for field in refused.schema:
        if field.kind == "[]struct":
            setattr(refused, field.name, [])
    return refused  # type: ignore[no-any-return]


def items(
    operation: Operation,
    resource: Resource,
    asked: str,
    answered: str,
    name: Callable[[Any], str] = name_of,
    *,
    text: str | None = None,
) -> Rule:
    """Each item of the request's array `asked` alone; `answered` is the answer's array.

    `text`: the error message, where the answer has a place for one.
    """

    def rule(access: Access, request: Any) -> Verdict:
        given = getattr(request, asked) or ()
        denied = [item for item in given if not access.may(operation, resource, name(item))]
        if not denied:
            return None
        return without(access, request, asked, answered, denied, resource, text)

    return rule


def without(
    access: Access,
    request: Any,
    asked: str,
    answered: str,
    denied: Sequence[Any],
    resource: Resource,
    text: str | None = None,
) -> Verdict:
    """Take items out of the request, to be answered with the code of `resource`.

    They look like any others that failed, and stand where they were asked for (LK-2).
    """
    refused: Any = refusal(access, request, asked, denied, resource, text)
    given = getattr(request, asked)
    kept = others(given, denied)
    setattr(request, asked, kept)
    if not kept:
        return refused
    return merged(answered, getattr(refused, answered), [label(item) for item in given])


def others(given: Sequence[Any], denied: Sequence[Any]) -> list[Any]:
    """What is given and not denied; what is denied is of the given things, whatever it equals."""
    gone = set(map(id, denied))
    return [item for item in given if id(item) not in gone]


def refusal(
    access: Access,
    request: Any,
    asked: str,
    denied: Sequence[Any],
    resource: Resource,
    text: str | None = None,
) -> Response:
    """The answer to a request for nothing but what is denied."""
    given = getattr(request, asked)
    setattr(request, asked, list(denied))
    try:
        return error_response(request, access.ctx.api_version, DENIED[resource][0], text)
    finally:
        setattr(request, asked, given)


def merged(answered: str, refused: Sequence[Any], order: Sequence[Any]) -> Finish:
    """Add refused items to an answer's array, in the order of the request."""
    place: dict[Any, int] = {}
    for i, one in enumerate(order):
        place.setdefault(one, i)

    def finish(response: Any) -> Any:
        everything = [*getattr(response, answered), *refused]
        everything.sort(key=lambda item: place.get(label(item), len(place)))
        setattr(response, answered, everything)
        return response

    return finish


def label(item: Any) -> Any:
    """What an item is called, in a request as in its answer."""
    if isinstance(item, str):
        return item
    for field in _LABELS:
        value = getattr(item, field, None)
        if value:
            return value
    return getattr(item, "topic_id", None)


def finished(verdict: Verdict, finish: Finish) -> Verdict:
    """`finish` what the handler answers; then what the verdict adds."""
    if verdict is None:
        return finish
    if callable(verdict):
        return lambda response: verdict(finish(response))
    return verdict
