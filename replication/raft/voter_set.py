"""Who votes: identities, endpoints, and the voter set at each offset of the log (KIP-853). PURE.

What: `VoterSet` maps node ids to `Voter`s; `VoterHistory` remembers from which offset on each set
counts. Why: a voter is (node id, directory id), so that a wiped disk is a new voter that cannot
vote a second time (K-11); and a set counts from the moment its record is appended, committed or
not, so a truncation must find the set before it again (K-12).
How: kraft.version 0 has static voters from the configuration, whose directory ids are not known
(ZERO_DIRECTORY_ID) and never compared; kraft.version 1 takes them from VotersRecords.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

ZERO_DIRECTORY_ID = bytes(16)


class Endpoint(NamedTuple):
    """A listener of a node: name, host, port."""

    name: str
    host: str
    port: int


class ReplicaKey(NamedTuple):
    """Identity of a replica of the log. A zero directory id means: not known."""

    node_id: int
    directory_id: bytes = ZERO_DIRECTORY_ID

    def accepts(self, other: ReplicaKey) -> bool:
        """Is `other` meant by this key: the same id and, if this key names one, directory id."""
        return self.node_id == other.node_id and (
            self.directory_id in (ZERO_DIRECTORY_ID, other.directory_id)
        )


NO_REPLICA = ReplicaKey(-1)


class Voter(NamedTuple):
    """A voter, where it is reached, and the range of kraft.version it supports."""

    node_id: int
    directory_id: bytes = ZERO_DIRECTORY_ID
    endpoints: tuple[Endpoint, ...] = ()
    kraft_versions: tuple[int, int] = (0, 1)

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    def accepts(self, other: ReplicaKey) -> bool:
        """Is `other` this voter; a static voter's directory is not known and not compared."""
        return self.key.accepts(other)

    def supports(self, kraft_version: int) -> bool:
        """Is it in the range; one with a bound below 0 is none (Kafka: SupportedVersionRange)."""
        lowest, highest = self.kraft_versions
        return 0 <= lowest <= kraft_version <= highest

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its endpoint by that name; its first one when none has the name."""
        for endpoint in self.endpoints:
            if endpoint.name == listener:
                return endpoint
        return self.endpoints[0] if self.endpoints else None


class VoterSet:
    """Immutable. Equal when kraft.version, identities and endpoints are."""

    __slots__ = ("_voters", "kraft_version")

    def __init__(self, voters: Iterable[Voter] = (), kraft_version: int = 0) -> None:
        self._voters = {voter.node_id: voter for voter in sorted(voters)}
        self.kraft_version = kraft_version

    @classmethod
    def of_ids(cls, *node_ids: int) -> VoterSet:
        """Static voters without endpoints (tests, a single voter)."""
        return cls(Voter(node_id) for node_id in node_ids)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._voters

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, VoterSet)
            and self.kraft_version == other.kraft_version
            and self._voters == other._voters
        )

    def __hash__(self) -> int:
        return hash((self.kraft_version, tuple(self._voters.values())))

    def __repr__(self) -> str:
        return f"VoterSet({sorted(self._voters)}, kraft_version={self.kraft_version})"

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._voters)

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        return tuple(voter.key for voter in self._voters.values())

    @property
    def majority(self) -> int:
        return len(self._voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        return self._voters.get(node_id)

    def is_voter(self, key: ReplicaKey) -> bool:
        """Is that replica one of the voters, by id and directory id (K-11)."""
        voter = self._voters.get(key.node_id)
        return voter is not None and voter.accepts(key)

    def plus(self, voter: Voter) -> VoterSet:
        """With `voter` added, or in place of the one with its id."""
        others = [other for other in self if other.node_id != voter.node_id]
        return VoterSet([*others, voter], self.kraft_version)

    def minus(self, key: ReplicaKey) -> VoterSet:
        """Without that voter."""
        return VoterSet([other for other in self if other.key != key], self.kraft_version)

    def with_kraft_version(self, kraft_version: int) -> VoterSet:
        return VoterSet(self, kraft_version)


class VoterHistory:
    """Which voter set counts from which offset on. Kafka: VoterSetHistory.

    `static` counts below the first set that the log or a snapshot names.
    """

    __slots__ = ("_sets", "static")

    def __init__(self, static: VoterSet) -> None:
        self.static = static
        # Replaced, never changed: a snapshot is written on another thread.
        self._sets: tuple[tuple[int, VoterSet], ...] = ()

    def begin_with(self, static: VoterSet) -> None:
        """The configuration names these."""
        self.static = static

    @property
    def latest(self) -> VoterSet:
        return self._sets[-1][1] if self._sets else self.static

    @property
    def latest_offset(self) -> int:
        """Offset of the record that said so; -1 for the static set."""
        return self._sets[-1][0] if self._sets else -1

    def at(self, offset: int) -> VoterSet:
        """The set that counts for a log that ends with `offset` (inclusive)."""
        for since, voters in reversed(self._sets):
            if since <= offset:
                return voters
        return self.static

    def since(self, offset: int) -> list[VoterSet]:
        """The set that counts at `offset`, and those behind it."""
        return [self.at(offset), *(voters for begin, voters in self._sets if begin > offset)]

    def add(self, offset: int, voters: VoterSet) -> None:
        """`voters` counts from `offset` on. Raises AssertionError when offsets do not ascend."""
        assert offset > self.latest_offset, f"voter sets out of order at {offset}"
        self._sets = (*self._sets, (offset, voters))

    def truncate_to(self, end_offset: int) -> None:
        """Forget the sets at and above `end_offset`."""
        self._sets = tuple(entry for entry in self._sets if entry[0] < end_offset)

    def restart(self, offset: int, voters: VoterSet | None) -> None:
        """A snapshot up to `offset` (exclusive) says who votes; all before is forgotten."""
        self._sets = () if voters is None else ((offset - 1, voters),)

    def forget_below(self, offset: int) -> None:
        """Keep only what a log that starts at `offset` needs."""
        while len(self._sets) > 1 and self._sets[1][0] < offset:
            self._sets = self._sets[1:]
