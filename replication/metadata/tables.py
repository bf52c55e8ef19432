"""What a table of the metadata image is, and the image that has them. PURE.

What: `MetadataImage` has one attribute for each table, plain, since it is read for every request. A
`Table` says which records it takes and how they change the next image, which records it is written
as, and which of its keys differ between two images. Why: delta, comparison and snapshot are loops
over `registry.TABLES`, so that a table is one attribute and one entry and none of them can forget
it. How: a table changes `Changes.next`, through `Changes.own` and its like, which copy what is
shared with the older image on the first change. Registrations are replaced, never changed in place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

from replication.metadata.registrations import (
    BrokerRegistration,
    ControllerRegistration,
    PartitionRegistration,
)
from wire.messages import metadata_records as m

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
ELR_VERSION = "eligible.leader.replicas.version"
CONTROLLER_REGISTRATION_SINCE = 15
"""metadata.version 3.7-IV0, the first with RegisterControllerRecord (KIP-919)."""

DIRECTORY_ASSIGNMENT_SINCE = 17
"""metadata.version 3.7-IV2, the first that knows in which directory a replica is (KIP-858)."""

CORDONED_DIRECTORIES_SINCE = 30
"""metadata.version 4.3-IV0, the first that knows which directories take no new ones (KIP-1066)."""

ConfigKey = tuple[int, str]
NO_CONFIGS: Mapping[str, str] = {}


@dataclass(slots=True)
class TopicImage:
    """A topic: name, id and its partitions by index (always 0..n-1)."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionRegistration] = field(default_factory=dict)


@dataclass(slots=True)
class MetadataImage:
    """The cluster's metadata after the record at `offset`. Immutable: replace, never change.

    `offset`, `epoch`, `timestamp` (wall ms) name the last record seen; -1 before the first.
    `configs` is keyed (resource type, resource name). The last four tables hold, by key, the
    records themselves.
    """

    offset: int = -1
    epoch: int = -1
    timestamp: int = -1
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    controllers: Mapping[int, ControllerRegistration] = field(default_factory=dict)
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigKey, Mapping[str, str]] = field(default_factory=dict)
    next_producer_id: int = -1
    client_quotas: Mapping[tuple[Any, ...], m.ClientQuotaRecord] = field(default_factory=dict)
    acls: Mapping[bytes, m.AccessControlEntryRecord] = field(default_factory=dict)
    scram_credentials: Mapping[tuple[str, int], m.UserScramCredentialRecord] = field(
        default_factory=dict
    )
    delegation_tokens: Mapping[str, m.DelegationTokenRecord] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Nothing was ever written: the log wants its bootstrap records."""
        return not self.features and not self.brokers and not self.topics_by_id

    def topic(self, name: str) -> TopicImage | None:
        return self.topics_by_name.get(name)

    def partition(self, name: str, partition_index: int) -> PartitionRegistration | None:
        topic = self.topics_by_name.get(name)
        return None if topic is None else topic.partitions.get(partition_index)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Dynamic configs of one resource; empty when it has none."""
        return self.configs.get((resource_type, name), NO_CONFIGS)

    def alive_brokers(self) -> list[BrokerRegistration]:
        """Brokers clients may be sent to: registered and not fenced, by id."""
        return [self.brokers[i] for i in sorted(self.brokers) if not self.brokers[i].fenced]

    def is_active(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active

    def feature(self, name: str) -> int:
        """Finalised level; 0 = off."""
        return self.features.get(name, 0)

    @property
    def knows_directories(self) -> bool:
        """Can its records say in which directory a replica is (KIP-858)? Those of an older
        metadata.version lose it: what is decided on an image must not be what no log can hold.
        """
        return self.feature(METADATA_VERSION) >= DIRECTORY_ASSIGNMENT_SINCE

    @property
    def knows_cordoned_directories(self) -> bool:
        """Can its records say which directories take no new replicas (KIP-1066)?"""
        return self.feature(METADATA_VERSION) >= CORDONED_DIRECTORIES_SINCE

    def state_equals(self, other: MetadataImage) -> bool:
        """Same content, whatever offset it was read at (a reload must give this)."""
        return replace(self, offset=0, epoch=0, timestamp=0) == replace(
            other, offset=0, epoch=0, timestamp=0
        )


EMPTY_IMAGE = MetadataImage()


_values_of = attrgetter(*(each.name for each in fields(MetadataImage)))


def copy_of(image: MetadataImage) -> MetadataImage:
    """Another image of the same tables. (`dataclasses.replace` takes five times as long.)"""
    return MetadataImage(*_values_of(image))


class Changes:
    """The next image while it is made, and what is different in it.

    `changed` has, by the name of a table, the keys that were added, replaced or removed; of topics
    see `MetadataDelta`.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.next = copy_of(image)
        self.changed: defaultdict[str, set[Any]] = defaultdict(set)
        self.changed_topics: set[str] = set()
        self.changed_partitions: dict[bytes, set[int]] = {}
        self.deleted_topics: dict[str, bytes] = {}
        self._owned: set[Any] = set()

    def own(self, table: str) -> dict[Any, Any]:
        """The next image's own copy of a table."""
        if table not in self._owned:
            self._owned.add(table)
            setattr(self.next, table, dict(getattr(self.next, table)))
        return getattr(self.next, table)  # type: ignore[no-any-return]

    def owns(self, part: Any) -> bool:
        """Is `part` of a table this image's own already; from now on it is."""
        if part in self._owned:
            return True
        self._owned.add(part)
        return False

    def disown(self, part: Any) -> None:
        self._owned.discard(part)

    def put(self, table: str, key: Any, value: Any) -> None:
        self.own(table)[key] = value
        self.changed[table].add(key)

    def remove(self, table: str, key: Any) -> None:
        """Nothing happens if it is not there."""
        self.own(table).pop(key, None)
        self.changed[table].add(key)


Replay = Callable[[Any, Any], None]
"""(changes, record): raises ValueError for a record that contradicts the image."""


def different(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> set[Any]:
    """Keys that are in one only, or whose values differ."""
    if old is new:
        return set()
    changed = {key for key, value in new.items() if key not in old or old[key] != value}
    changed.update(key for key in old if key not in new)
    return changed


class Table(NamedTuple):
    """One table: the attribute `name` of the image."""

    name: str
    replays: Mapping[type, Replay]
    """What each type of record that the table takes does to it."""
    write: Callable[[MetadataImage], Iterable[Any]]
    """The records of a snapshot."""
    compare: Callable[[Changes, MetadataImage], None] | None = None
    """Note what differs from `changes.image` in another image; None: entry by entry."""

    def note_differences(self, changes: Changes, new: MetadataImage) -> None:
        """Kafka: MetadataDelta.finishSnapshot."""
        if self.compare is not None:
            self.compare(changes, new)
        else:
            old = getattr(changes.image, self.name)
            changes.changed[self.name] |= different(old, getattr(new, self.name))


def records_table(
    name: str,
    key: Callable[[Any], Any],
    record: type,
    removal: type | None = None,
    *,
    is_removal: Callable[[Any], bool] = lambda _: False,
) -> Table:
    """A table of the records themselves. `key`: of a record that adds and of one that removes;
    `is_removal`: does one of the former remove.
    """

    def put(changes: Changes, new: Any) -> None:
        if is_removal(new):
            changes.remove(name, key(new))
        else:
            changes.put(name, key(new), new)

    def remove(changes: Changes, gone: Any) -> None:
        changes.remove(name, key(gone))

    replays: dict[type, Replay] = {record: put}
    if removal is not None:
        replays[removal] = remove
    return Table(name, replays, lambda image: getattr(image, name).values())
