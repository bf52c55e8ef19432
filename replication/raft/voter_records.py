"""Voter sets as Kafka's control records, in the log and in snapshots: KRaftVersionRecord and
VotersRecord (KIP-853).

A leader writes both in one batch, the version first; each counts from its own offset on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from replication.raft.voter_set import Endpoint, Voter, VoterSet
from wire.control_records import ControlRecordType, control_record_type
from wire.record_batch import BatchHeader
from wire.records import read_records


class ControlRecord(NamedTuple):
    """A control record of the quorum: its type and its encoded value."""

    type: ControlRecordType
    value: bytes


def voter_controls(voters: VoterSet) -> list[ControlRecord]:
    """The records that name `voters`; none when they are static (kraft.version 0)."""
    if voters.kraft_version < 1:
        return []
    from wire.messages.raft_records import KRaftVersionRecord, VotersRecord

    version = KRaftVersionRecord(version=0, kraft_version=voters.kraft_version)
    controls = [ControlRecord(ControlRecordType.KRAFT_VERSION, version.encode_bytes(0))]
    if len(voters):
        row = VotersRecord.Voter
        record = VotersRecord(
            version=0,
            voters=[
                row(
                    voter_id=voter.node_id,
                    voter_directory_id=voter.directory_id,
                    endpoints=[
                        row.Endpoint(name=name, host=host, port=port)
                        for name, host, port in voter.endpoints
                    ],
                    kraft_version_feature=row.KRaftVersionFeature(
                        min_supported_version=voter.kraft_versions[0],
                        max_supported_version=voter.kraft_versions[1],
                    ),
                )
                for voter in voters
            ],
        )
        controls.append(ControlRecord(ControlRecordType.KRAFT_VOTERS, record.encode_bytes(0)))
    return controls


def voters_after(controls: Iterable[ControlRecord], voters: VoterSet) -> VoterSet:
    """What `voters` become by these records. Raises MalformedFrame."""
    from wire.messages.raft_records import KRaftVersionRecord, VotersRecord

    for type_, value in controls:
        if type_ is ControlRecordType.KRAFT_VERSION:
            version = KRaftVersionRecord.decode(value, 0).kraft_version
            voters = voters.with_kraft_version(version)
        elif type_ is ControlRecordType.KRAFT_VOTERS:
            voters = VoterSet(
                (
                    Voter(
                        row.voter_id,
                        row.voter_directory_id,
                        tuple(Endpoint(e.name, e.host, e.port) for e in row.endpoints),
                        (
                            row.kraft_version_feature.min_supported_version,
                            row.kraft_version_feature.max_supported_version,
                        ),
                    )
                    for row in VotersRecord.decode(value, 0).voters
                ),
                voters.kraft_version,
            )
    return voters


def voters_in_batch(
    header: BatchHeader, data: bytes | memoryview, position: int, voters: VoterSet
) -> list[tuple[int, VoterSet]]:
    """The voter sets that a control batch names, each with its record's offset.

    `voters`: the set before it. Raises KafkaError, MalformedFrame.
    """
    found: list[tuple[int, VoterSet]] = []
    for record in read_records(data, position, header):
        type_ = control_record_type(record.key)
        if type_ in (ControlRecordType.KRAFT_VERSION, ControlRecordType.KRAFT_VOTERS):
            voters = voters_after([ControlRecord(type_, record.value or b"")], voters)
            found.append((record.offset, voters))
    return found
