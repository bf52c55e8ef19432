"""What the quorum itself writes: control records, snapshot ends, and its vote.

A control record's key is its version (int16) and ControlRecordTypeSchema; the value begins with
its own version as a field. QuorumStateData is kept as JSON in the file quorum-state.
"""

from __future__ import annotations

from wire.primitives import ZERO_UUID
from wire.schema import Array, Int16, Int32, Int64, Nested, Record, String, Struct, Uint16, Uuid


class QuorumStateData(Record, versions=(0, 1), flexible=0):
    """The quorum-state file: epoch, vote and leader a voter must not forget."""

    cluster_id: str = String(until=0, default="")
    leader_id: int = Int32(default=-1)
    leader_epoch: int = Int32(default=-1)
    voted_id: int = Int32(default=-1)
    voted_directory_id: bytes = Uuid(since=1, default=ZERO_UUID)
    applied_offset: int = Int64(until=0, default=0)

    class CurrentVoter(Struct):
        voter_id: int = Int32()

    current_voters: list[CurrentVoter] | None = Array(CurrentVoter, until=0, nullable=0, default=())


class ControlRecordTypeSchema(Record, versions=(0, 0)):
    """Key of a control record, after its version: which kind it is."""

    type: int = Int16()


class LeaderChangeMessage(Record, type_id=2, versions=(0, 1), flexible=0):
    """First record of a quorum leader's epoch."""

    version: int = Int16()
    leader_id: int = Int32()

    class Voter(Struct):
        voter_id: int = Int32()
        voter_directory_id: bytes = Uuid(since=1, default=ZERO_UUID)

    voters: list[Voter] = Array(Voter)
    granting_voters: list[Voter] = Array(Voter)


class SnapshotHeaderRecord(Record, type_id=3, versions=(0, 0), flexible=0):
    """First record of a snapshot."""

    version: int = Int16()
    last_contained_log_timestamp: int = Int64()


class SnapshotFooterRecord(Record, type_id=4, versions=(0, 0), flexible=0):
    """Last record of a snapshot; without it the snapshot is incomplete."""

    version: int = Int16()


class KRaftVersionRecord(Record, type_id=5, versions=(0, 0), flexible=0):
    """The finalized kraft.version."""

    version: int = Int16()
    kraft_version: int = Int16()


class VotersRecord(Record, type_id=6, versions=(0, 0), flexible=0):
    """The quorum's voters and their endpoints."""

    version: int = Int16()

    class Voter(Struct):
        voter_id: int = Int32()
        voter_directory_id: bytes = Uuid()

        class Endpoint(Struct):
            name: str = String()
            host: str = String()
            port: int = Uint16()

        endpoints: list[Endpoint] = Array(Endpoint)

        class KRaftVersionFeature(Struct):
            min_supported_version: int = Int16()
            max_supported_version: int = Int16()

        kraft_version_feature: KRaftVersionFeature = Nested(KRaftVersionFeature)

    voters: list[Voter] = Array(Voter)
