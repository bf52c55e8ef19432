"""Changes of the voter set, as the leader makes them: AddRaftVoter, RemoveRaftVoter,
UpdateRaftVoter, and kraft.version from 0 to 1 (KIP-853). PURE.

Rules (K-12): only after the leader committed in its own epoch; one change at a time, the last one
committed; a newcomer must support the kraft.version and have been caught up; a set counts when its
record is appended. Add: the newcomer is asked for its versions first, so that no one votes who
cannot. Add and Remove are answered when committed, Update at once. A change that times out after
its record was appended may still happen; only the answer is lost.

With static voters (kraft.version 0) nothing can be added or removed, but every voter tells each new
leader its directory id, endpoints and supported versions (UpdateVoter). The leader keeps that in
memory; when all have told, `upgrade` makes it the first voter set of the log. Kafka:
KRaftVersionUpgrade, LeaderState.maybeAppendUpgradedKRaftVersion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from replication.raft.events import (
    AddVoter,
    AppendVoters,
    Peer,
    ProbeVersions,
    Ready,
    RemoveVoter,
    Send,
    UpdateVoter,
    VersionsReply,
    VoterChangeReply,
)
from replication.raft.voter_set import ZERO_DIRECTORY_ID, Voter, VoterSet
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.raft.own_events import Replica

VoterChange = AddVoter | RemoveVoter | UpdateVoter


@dataclass(frozen=True, slots=True)
class _Pending:
    """The Add or Remove under way; `offset` is its record's once appended."""

    request: AddVoter | RemoveVoter
    deadline_ms: int
    offset: int | None = None


def change_reply(core: Replica, error: ErrorCode, message: str = "") -> VoterChangeReply:
    """An answer to a change of voters as things are now."""
    endpoints = core.endpoints_of_leader()
    return VoterChangeReply(error, core.epoch, message, core.leader_id, endpoints)


def _range(voter: Voter) -> str:
    return "..".join(map(str, voter.kraft_versions))


class VoterChanges:
    """The leader's changes of the voter set; one object for each leadership."""

    __slots__ = ("_awaits_append", "_core", "_told", "pending")

    def __init__(self, core: Replica) -> None:
        self._core = core
        self.pending: _Pending | None = None
        self._awaits_append = False
        self._told: dict[int, Voter] = {}
        """Static voters as they told about themselves in this leadership."""

    @property
    def deadline_ms(self) -> int | None:
        return self.pending.deadline_ms if self.pending else None

    # --- the three requests ---------------------------------------------------------------------

    def begin(self, request: VoterChange, ready: Ready, now_ms: int) -> VoterChangeReply | None:
        """Start a change; None when its answer comes later as `Ready.change_reply`."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if isinstance(request, AddVoter):
            return self._begin_add(request, ready, now_ms)
        if isinstance(request, RemoveVoter):
            return self._begin_remove(request, ready, now_ms)
        return self._update(request, ready)

    def _refusal(self, request: VoterChange) -> VoterChangeReply | None:
        core = self._core
        voter = request.voter
        if voter.node_id < 0 or voter.directory_id == ZERO_DIRECTORY_ID:
            return change_reply(core, ErrorCode.INVALID_REQUEST, "the voter has no directory id")
        if isinstance(voter, Voter) and core.listener_name not in (e.name for e in voter.endpoints):
            return change_reply(
                core,
                ErrorCode.INVALID_REQUEST,
                f"the voter has no endpoint of the listener {core.listener_name}",
            )
        if self.pending is not None or self._awaits_append:
            return change_reply(
                core, ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way"
            )
        if not core.has_committed_in_epoch:
            return change_reply(
                core, ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed in its epoch yet"
            )
        if core.voters.kraft_version < 1:
            if isinstance(request, UpdateVoter):
                return None
            return change_reply(
                core,
                ErrorCode.UNSUPPORTED_VERSION,
                "voters are static: kraft.version is 0 (controller.quorum.voters)",
            )
        if core.history.latest_offset >= core.high_watermark:
            return change_reply(
                core,
                ErrorCode.REQUEST_TIMED_OUT,
                "the last change of the voters is not committed yet",
            )
        return None

    def _begin_add(self, request: AddVoter, ready: Ready, now_ms: int) -> VoterChangeReply | None:
        core, voter = self._core, request.voter
        if voter.node_id in core.voters:
            return change_reply(
                core, ErrorCode.DUPLICATE_VOTER, f"{voter.node_id} is a voter already"
            )
        self.pending = _Pending(request, now_ms + max(request.timeout_ms, 0))
        ready.send.append(Send(core.peer_of(voter), ProbeVersions()))
        return None

    def _begin_remove(
        self, request: RemoveVoter, ready: Ready, now_ms: int
    ) -> VoterChangeReply | None:
        core, key = self._core, request.voter
        if key not in core.voters.keys:
            return change_reply(
                core, ErrorCode.VOTER_NOT_FOUND, f"{key.node_id} with that directory id is no voter"
            )
        if len(core.voters) == 1:
            return change_reply(core, ErrorCode.INVALID_REQUEST, "the last voter cannot be removed")
        self.pending = _Pending(request, now_ms + core.config.request_timeout_ms)
        self._append(core.voters.minus(key), ready)
        return None

    def _update(self, request: UpdateVoter, ready: Ready) -> VoterChangeReply:
        core, voter = self._core, request.voter
        if not voter.supports(core.voters.kraft_version):
            return change_reply(
                core,
                ErrorCode.INVALID_REQUEST,
                f"kraft.version {core.voters.kraft_version} is not in {_range(voter)}",
            )
        if not core.voters.is_voter(voter.key):
            return change_reply(
                core,
                ErrorCode.VOTER_NOT_FOUND,
                f"{voter.node_id} with that directory id is no voter",
            )
        if core.voters.kraft_version < 1:
            self._told[voter.node_id] = voter
        elif core.voters.get(voter.node_id) != voter:
            self._append(core.voters.plus(voter), ready)
        return change_reply(core, ErrorCode.NONE)

    def _append(self, voters: VoterSet, ready: Ready) -> None:
        ready.append.append(self._change(voters))

    def _change(self, voters: VoterSet) -> AppendVoters:
        self._awaits_append = True
        return AppendVoters(self._core.epoch, voters)

    # --- kraft.version --------------------------------------------------------------------------

    def upgrade(self, level: int, validate_only: bool) -> AppendVoters | None:
        """Raise kraft.version to 1: what the caller must append, nothing if it is 1 already or
        `validate_only`. Raises KafkaError INVALID_UPDATE_VERSION when a voter has not told that it
        supports it.
        """
        core = self._core
        if core.voters.kraft_version == level or self._awaits_append:
            return None
        me = Voter(*core.key, core.endpoints)
        known = [
            me if voter.node_id == me.node_id else self._told.get(voter.node_id, voter)
            for voter in core.voters
        ]
        unable = [
            voter.node_id
            for voter in known
            if voter.directory_id == ZERO_DIRECTORY_ID
            or not voter.endpoints
            or not voter.supports(level)
        ]
        if unable:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid upgrade of kraft.version to {level} because not all of the voters support"
                f" it: {', '.join(map(str, unable))} did not tell this leader a directory id, a"
                " controller endpoint and versions that do",
            )
        return None if validate_only else self._change(VoterSet(known, level))

    # --- what comes of them ---------------------------------------------------------------------

    def probed(self, peer: Peer, reply: VersionsReply | None, ready: Ready, now_ms: int) -> None:
        """The newcomer said which versions it supports, or nothing (None); `peer`: who was asked.
        It may be one that an earlier change named, by another endpoint.
        """
        pending, core = self.pending, self._core
        if (
            pending is None
            or pending.offset is not None
            or self._awaits_append
            or not isinstance(pending.request, AddVoter)
            or core.peer_of(pending.request.voter) != peer
        ):
            return
        assert core.leader is not None, "only a leader changes voters"
        if reply is None or reply.error is not ErrorCode.NONE:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "the new voter does not answer", ready)
            return
        voter = pending.request.voter._replace(kraft_versions=reply.kraft_versions)
        if not voter.supports(core.voters.kraft_version):
            self._finish(
                ErrorCode.INVALID_REQUEST,
                f"the new voter supports kraft.version {_range(voter)} only",
                ready,
            )
        elif not core.leader.is_caught_up(voter.key, now_ms):
            self._finish(
                ErrorCode.REQUEST_TIMED_OUT, "the new voter is not caught up with the log", ready
            )
        else:
            self._append(core.voters.plus(voter), ready)

    def appended(self, offset: int, ready: Ready) -> None:
        """The record with the new set stands at `offset`."""
        self._awaits_append = False
        pending = self.pending
        if pending is None:
            return
        self.pending = replace(pending, offset=offset)
        if isinstance(pending.request, AddVoter) and not pending.request.ack_when_committed:
            self._finish(ErrorCode.NONE, "", ready)

    def committed(self, high_watermark: int, ready: Ready) -> None:
        pending = self.pending
        if pending is not None and pending.offset is not None and pending.offset < high_watermark:
            self._finish(ErrorCode.NONE, "", ready)

    def expire(self, ready: Ready, now_ms: int) -> None:
        if self.pending is not None and now_ms >= self.pending.deadline_ms:
            self._finish(ErrorCode.REQUEST_TIMED_OUT, "the change was not committed in time", ready)

    def abandon(self, ready: Ready) -> None:
        """Leadership ends: whoever waits is told to ask the next leader."""
        if self.pending is not None:
            self._finish(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader resigned", ready)

    def _finish(self, error: ErrorCode, message: str, ready: Ready) -> None:
        self.pending = None
        ready.change_reply = change_reply(self._core, error, message)
