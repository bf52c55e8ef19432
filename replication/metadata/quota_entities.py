"""Who client quotas are for. PURE.

An entity is made of a user, a client id, both, or an address (`ip`); a name of None is the default
of its kind. In the image a quota's record stands under its entity and its key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

USER, CLIENT_ID, IP = "user", "client-id", "ip"

Entity = tuple[tuple[str, str, bool], ...]
"""(kind, name or "", is it the default) of each part, sorted."""


def entity_of(parts: Iterable[Any]) -> Entity:
    """The key of an entity, of a record or a request."""
    return tuple(sorted((e.entity_type, e.entity_name or "", e.entity_name is None) for e in parts))


def names_of(entity: Entity) -> dict[str, str | None]:
    """Kind -> name, None for the default."""
    return {kind: None if is_default else name for kind, name, is_default in entity}
