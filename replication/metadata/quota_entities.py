"""Who client quotas are for. PURE.

An entity is made of a user, a client id, both, or an address (`ip`); a name of None is the default
of its kind. In the image a quota's record stands under its entity and its key. `levels` is the
order in which the entities that mean a user's client are asked for a quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

USER, CLIENT_ID, IP = "user", "client-id", "ip"

NAME_KEPT_MAX = 256
"""Longest client id that is kept as it is, in characters."""

Entity = tuple[tuple[str, str, bool], ...]
"""(kind, name or "", is it the default) of each part, sorted."""


def entity_of(parts: Iterable[Any]) -> Entity:
    """The key of an entity, of a record or a request."""
    return tuple(sorted((e.entity_type, e.entity_name or "", e.entity_name is None) for e in parts))


def names_of(entity: Entity) -> dict[str, str | None]:
    """Kind -> name, None for the default."""
    return {kind: None if is_default else name for kind, name, is_default in entity}


def levels(user: str, client: str) -> tuple[Entity, ...]:
    """The entities that mean this client of this user: the first that has a quota counts."""
    one, every = (CLIENT_ID, client, False), (CLIENT_ID, "", True)
    own, default = (USER, user, False), (USER, "", True)
    return (
        (one, own),
        (every, own),
        (own,),
        (one, default),
        (every, default),
        (default,),
        (one,),
        (every,),
    )


def shared_by(level: Entity, user: str, client: str) -> tuple[str | None, str | None]:
    """Who uses up one quota together: the user's clients, unless it is told apart by them.

    Of a long client id, which is the client's choice and may have 32 KiB, a digest stands there.
    """
    kinds = {kind for kind, _, _ in level}
    if len(client) > NAME_KEPT_MAX:
        from hashlib import sha256  # OpenSSL's: 3.5 MiB that few brokers ever need

        client = sha256(client.encode()).hexdigest()
    return user if USER in kinds else None, client if CLIENT_ID in kinds else None
