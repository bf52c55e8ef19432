"""Three drivers on disk: elections, replication, divergence, snapshots, changes of voters."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replication.raft.events import (
    AddVoter,
    Fetch,
    FetchReply,
    FetchSnapshot,
    Outgoing,
    Peer,
    ProbeVersions,
    RaftConfig,
    RemoveVoter,
    Reply,
    UpdateVoter,
    VersionsReply,
    Vote,
    VoterChangeReply,
)
from replication.raft.log import RaftLog
from replication.raft.roles import Role
from replication.raft.snapshots import SnapshotId
from replication.raft.voter_set import Endpoint, ReplicaKey, Voter
from storage import files
from tests.replication.raft_quorum import Member, Quorum
from tests.replication.raft_support import TextSerde
from wire.errors import ErrorCode, KafkaError


def reply_to(quorum: Quorum, member: Member, request: Any) -> list[Any]:
    """What a member answers, once it does."""
    replies: list[Any] = []
    member.driver.handle(request, replies.append)
    quorum.run(0)
    return replies


# --- elections and replication ------------------------------------------------------------------


def test_what_a_record_means_is_found_out_by_who_reads_it_not_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread fetches and votes: a large commit must not keep it from that."""
    decoded: list[bytes] = []
    decode = TextSerde.decode

    def note(serde: TextSerde, value: bytes) -> str:
        decoded.append(value)
        return decode(serde, value)

    monkeypatch.setattr(TextSerde, "decode", note)
    quorum = Quorum(tmp_path)
    last = quorum.append("a", "b")
    followers = quorum.followers()
    quorum.run_until(
        lambda: all(m.recorder.batches[-1:] and m.recorder.batches[-1].last_offset == last
                    for m in followers)
    )  # fmt: skip
    assert decoded == []
    assert len(followers[0].recorder.batches[-1].records) == 2
    assert quorum.all_have("a", "b")


def test_a_cold_quorum_elects_within_a_second_and_replicates_to_all(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1)
    assert quorum.run_until(lambda: quorum.leader is not None) < 1000
    quorum.append("a", "b")
    quorum.append("c")
    assert quorum.run_until(lambda: quorum.all_have("a", "b", "c")) <= 110
    leader = quorum.elect()
    assert leader.recorder.leaders[-1] == (leader.node_id, 1)
    for member in quorum.followers():
        assert member.recorder.leaders[-1] == (leader.node_id, 1)
        assert member.driver.wait_until_caught_up(0)
        peer = member.driver.leader_endpoint()
        assert peer is not None
        assert (peer.node_id, peer.port) == (leader.node_id, leader.node_id)


def test_followers_hear_of_a_commit_at_once_not_with_the_next_append(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    before = quorum.clock.ms
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert quorum.clock.ms - before <= 10


def test_a_dead_leader_is_replaced_and_its_acknowledged_records_stay(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    old = quorum.elect()
    old.stop()
    assert quorum.run_until(lambda: quorum.leader is not None) < 5000
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    old.start()
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert old.driver.leader_id == quorum.elect().node_id


def test_what_an_isolated_leader_could_not_commit_is_cut_off(tmp_path: Path) -> None:
    """K-6, K-8: it resigns, and takes the others' log when it is back."""
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    old = quorum.elect()
    quorum.cut = {old.node_id}
    old.driver.append(old.driver.leader_epoch, ["lost", "lost too"])
    quorum.run(5000)
    assert old.driver.core.role is not Role.LEADER
    with pytest.raises(KafkaError):
        old.driver.append(1, ["refused"])
    quorum.append("b")
    quorum.run(100)
    assert "lost" not in old.records
    quorum.cut = set()
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert old.recorder.leaders[-1] == (quorum.elect().node_id, quorum.elect().driver.leader_epoch)


def test_an_isolated_follower_returns_without_disturbing_the_leader(tmp_path: Path) -> None:
    """K-5."""
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader, lonely = quorum.elect(), quorum.followers()[0]
    quorum.cut = {lonely.node_id}
    quorum.run(60_000)
    quorum.cut = set()
    quorum.run(10_000)
    assert quorum.elect() is leader
    assert {m.driver.leader_epoch for m in quorum.members.values()} == {1}


def test_a_follower_syncs_before_it_asks_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-4: its fetch at offset N is its word that all below is on disk."""
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader = quorum.elect()
    order: list[str] = []
    real_sync, real_send = files.fsync, quorum.send

    def sync(fd: int) -> None:
        order.append("sync")
        real_sync(fd)

    def send(to: Any, request: Any, *rest: Any) -> None:
        if isinstance(request, Fetch):
            order.append(f"fetch {request.offset}")
        real_send(to, request, *rest)

    monkeypatch.setattr(files, "fsync", sync)
    monkeypatch.setattr(quorum, "send", send)
    end = leader.driver.log.end_offset
    quorum.append("b")
    quorum.run(5)
    for place in [n for n, what in enumerate(order) if what == f"fetch {end + 1}"][:2]:
        assert order[place - 1] == "sync"


def test_a_leader_that_stops_hands_over_at_once(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    old = quorum.elect()
    old.driver._stopping = True
    old.driver._stop_deadline_ms = quorum.clock.ms + 5000
    began = quorum.clock.ms
    quorum.run_until(lambda: quorum.leader not in (None, old))
    assert quorum.clock.ms - began < 300
    assert old.driver._may_stop()


def test_a_leader_that_restarts_is_not_told_that_it_leads(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    old = quorum.elect()
    old.stop()
    old.start()
    assert old.driver.core.role is Role.RESIGNED
    assert [leader for leader, _ in old.recorder.leaders] == [-1]


def test_a_whole_quorum_restarts_with_all_that_it_committed(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a", "b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    for member in quorum.members.values():
        member.stop()
    for member in quorum.members.values():
        member.start()
    quorum.append("c")
    assert quorum.run_until(lambda: quorum.all_have("a", "b", "c")) < 3000


def test_where_no_disk_has_room_leaders_do_not_follow_each_other_as_fast_as_votes_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    refused = 0

    def full(*_: Any) -> int:
        nonlocal refused
        refused += 1
        assert refused <= 10, "at most one leader a second"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")

    with monkeypatch.context() as broken:
        broken.setattr(RaftLog, "append", full)
        quorum.append("lost")
        quorum.run(10_000)
    assert refused > 1
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))


# --- snapshots ----------------------------------------------------------------------------------


def _snapshot(member: Member) -> SnapshotId:
    driver = member.driver
    last = member.recorder.batches[-1]
    snapshot_id = SnapshotId(last.last_offset + 1, last.epoch)
    driver.write_snapshot(snapshot_id, 5, list(member.records))
    driver.turn()
    return snapshot_id


@pytest.mark.parametrize("piece", [200, 1 << 20])
def test_who_was_left_behind_gets_the_snapshot_and_what_followed(
    tmp_path: Path, piece: int
) -> None:
    """K-9: downloaded piece by piece, the log begins anew at its end."""
    quorum = Quorum(tmp_path, config=RaftConfig(fetch_max_bytes=piece))
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    late = quorum.followers()[0]
    late.stop()
    texts = [f"record {n} " + "x" * 50 for n in range(20)]
    for text in texts:
        quorum.append(text)
    quorum.run(100)
    snapshot_id = _snapshot(quorum.elect())
    quorum.append("after")
    quorum.run(100)
    late.start()
    quorum.sent.clear()
    quorum.run_until(lambda: quorum.all_have("a", *texts, "after"))
    assert late.recorder.snapshot == ["a", *texts]
    assert late.driver.log.start_offset == snapshot_id.offset
    asked = [r for _, r in quorum.sent if isinstance(r, FetchSnapshot)]
    assert (len(asked) > 3) == (piece == 200)
    late.stop()
    late.start()
    quorum.run_until(lambda: quorum.all_have("a", *texts, "after"))


def test_a_running_state_machine_is_given_the_snapshot(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    late = quorum.followers()[0]
    quorum.cut = {late.node_id}
    quorum.append("b")
    quorum.run(100)
    _snapshot(quorum.elect())
    quorum.cut = set()
    quorum.run_until(lambda: late.driver.high_watermark == quorum.elect().driver.high_watermark)
    assert late.recorder.snapshot == ["a", "b"]


def _one_that_missed_a_record(tmp_path: Path, **rest: Any) -> tuple[Quorum, Member]:
    """A quorum with "a" and "b" in its log, and a follower that stopped between them."""
    quorum = Quorum(tmp_path, **rest)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    late = quorum.followers()[0]
    late.stop()
    quorum.append("b")
    quorum.run(100)
    return quorum, late


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_download_is_thrown_away_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    quorum, late = _one_that_missed_a_record(tmp_path)
    leader = quorum.elect()
    _snapshot(leader)
    real, times = leader.driver.log.read_snapshot_part, 0

    def damaged(*arguments: Any) -> Any:
        nonlocal times
        times += 1
        size, data = real(*arguments) or (0, b"")
        if times > 1:
            return size, data
        return size, data[:-9] + (b"" if damage == "cut" else b"\xff" * 9)

    monkeypatch.setattr(leader.driver.log, "read_snapshot_part", damaged)
    late.start()
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert times > 1
    assert not [p for p in (late.path / "__cluster_metadata-0").iterdir() if p.suffix == ".part"]


@pytest.mark.parametrize("room_for", [0, 1])
def test_a_download_that_fills_the_disk_gives_the_room_back_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_for: int
) -> None:
    """`room_for` so many pieces; without any, not even for the file's name."""
    quorum, late = _one_that_missed_a_record(tmp_path, config=RaftConfig(fetch_max_bytes=100))
    _snapshot(quorum.elect())
    late.start()
    directory = late.path / "__cluster_metadata-0"
    real, opened, refused = files.open_file, 0, 0

    def full(path: Any, *rest: Any) -> Any:
        nonlocal opened, refused
        if Path(path).parent == directory and str(path).endswith(".part"):
            opened += 1
            if opened > room_for:
                refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *rest)

    with monkeypatch.context() as broken:
        broken.setattr(files, "open_file", full)
        quorum.run_until(lambda: refused > 0)
        assert not list(directory.glob("*.part"))
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert not list(directory.glob("*.part"))


@pytest.mark.parametrize("name", ["{:020d}.log", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_download_that_leaves_no_room_for_the_log_to_begin_anew_ends_no_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: int
) -> None:
    quorum, late = _one_that_missed_a_record(tmp_path)
    offset = _snapshot(quorum.elect()).offset
    late.start()
    directory, unwritable = late.path / "__cluster_metadata-0", name.format(offset)
    real, refused = files.open_file, 0

    def full(path: Any, flags: int, *rest: Any) -> Any:
        nonlocal refused
        path = Path(path)
        if path.parent == directory and unwritable in path.name and flags & os.O_CREAT:
            refused += 1
            raise OSError(error, os.strerror(error))
        return real(path, flags, *rest)

    with monkeypatch.context() as broken:
        broken.setattr(files, "open_file", full)
        quorum.run(1000)
        assert refused > 0
    quorum.append("c")
    quorum.run_until(lambda: quorum.all_have("a", "b", "c"))
    late.stop()
    late.start()
    quorum.run_until(lambda: quorum.all_have("a", "b", "c"))


def test_nobody_is_told_more_at_once_than_a_replica_would_ask_for(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, config=RaftConfig(fetch_max_bytes=300))
    texts = [f"record {n} " + "x" * 50 for n in range(20)]
    for text in texts:
        quorum.append(text)
        quorum.run(10)
    quorum.run_until(lambda: quorum.all_have(*texts))
    leader, most = quorum.elect(), (1 << 31) - 1
    key, epoch, end = ReplicaKey(9), leader.driver.leader_epoch, leader.driver.log.end_offset
    (fetched,) = reply_to(quorum, leader, Fetch(key, epoch, 1, epoch, 500, most, -1))
    assert 0 < len(fetched.records) <= 300
    snapshot_id = _snapshot(leader)
    assert snapshot_id.offset == end
    (piece,) = reply_to(quorum, leader, FetchSnapshot(key, epoch, snapshot_id, 0, most))
    assert (len(piece.data), piece.size > 300) == (300, True)


def test_snapshot_requests_outside_of_what_there_is_are_refused(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader = quorum.elect()
    snapshot_id = _snapshot(leader)
    key, epoch = ReplicaKey(9), leader.driver.leader_epoch
    for request, error in (
        (FetchSnapshot(key, epoch, SnapshotId(1, 1), 0), ErrorCode.SNAPSHOT_NOT_FOUND),
        (FetchSnapshot(key, epoch, snapshot_id, 1 << 30), ErrorCode.POSITION_OUT_OF_RANGE),
        (FetchSnapshot(key, epoch, snapshot_id, -1), ErrorCode.POSITION_OUT_OF_RANGE),
        (FetchSnapshot(key, epoch - 1, snapshot_id, 0), ErrorCode.FENCED_LEADER_EPOCH),
        (FetchSnapshot(key, epoch, snapshot_id, 0), ErrorCode.NONE),
    ):
        (reply,) = reply_to(quorum, leader, request)
        assert reply.error is error


def test_a_leader_without_a_descriptor_for_a_snapshot_says_so_and_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader = quorum.elect()
    request = FetchSnapshot(ReplicaKey(9), leader.driver.leader_epoch, _snapshot(leader), 0)
    real = files.open_file

    def none_left(path: Any, *rest: Any) -> Any:
        if str(path).endswith(".checkpoint"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *rest)

    with monkeypatch.context() as broken:
        broken.setattr(files, "open_file", none_left)
        (refusal,) = reply_to(quorum, leader, request)
    (piece,) = reply_to(quorum, leader, request)
    assert (refusal.error, piece.error) == (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE)
    assert quorum.leader is leader


# --- parked fetches -----------------------------------------------------------------------------


def test_a_fetch_with_nothing_new_waits_and_is_answered_when_its_time_is_up(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path)
    leader = quorum.elect()
    quorum.run(100)
    end = leader.driver.log.position
    request = Fetch(ReplicaKey(9), leader.driver.leader_epoch, end.end_offset, end.epoch, 300)
    replies: list[FetchReply] = []
    leader.driver.handle(request, replies.append)
    quorum.run(200)
    assert replies == []
    quorum.run(150)
    assert [(reply.error, reply.records) for reply in replies] == [(ErrorCode.NONE, b"")]


def test_parked_fetches_are_refused_when_leadership_ends(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    leader = quorum.elect()
    quorum.run(100)
    end = leader.driver.log.position
    request = Fetch(ReplicaKey(9), leader.driver.leader_epoch, end.end_offset, end.epoch, 400)
    replies: list[FetchReply] = []
    leader.driver.handle(request, replies.append)
    leader.driver.resign(leader.driver.leader_epoch)
    quorum.run(1)
    assert [reply.error for reply in replies] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_stopped_driver_answers_that_it_is_not_available(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    member = quorum.members[1]
    member.driver.shutdown()
    member.is_up = False
    replies: list[Any] = []
    member.driver.handle(Vote(ReplicaKey(2), 9, member.driver.log.position), replies.append)
    assert replies[0].error is ErrorCode.BROKER_NOT_AVAILABLE


# --- voters that change (KIP-853) ---------------------------------------------------------------


def test_a_dynamic_quorum_starts_from_the_formats_checkpoint_and_an_empty_node_joins_it(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    newcomer = quorum.members[4]
    assert newcomer.driver.voters.ids == (1, 2, 3), "learnt from the log"
    assert not newcomer.driver.is_voter
    (reply,) = reply_to(quorum, quorum.elect(), AddVoter(newcomer.voter, 5000))
    assert reply.error is ErrorCode.NONE
    quorum.run(100)
    for member in quorum.members.values():
        assert member.driver.voters.ids == (1, 2, 3, 4)
    info = quorum.elect().driver.describe_quorum()
    assert [v.replica_id for v in info.voters] == [1, 2, 3, 4]
    assert info.observers == []
    assert info.nodes[3].endpoints == newcomer.endpoints
    for member in quorum.members.values():
        member.stop()
    for member in quorum.members.values():
        member.start()
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))


def _change(quorum: Quorum, request: Any) -> VoterChangeReply:
    replies: list[VoterChangeReply] = []
    quorum.elect().driver.handle(request, replies.append)
    quorum.run_until(lambda: bool(replies))
    return replies[0]


def test_a_leader_that_is_removed_hands_over_and_follows(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    old = quorum.elect()
    assert _change(quorum, RemoveVoter(old.voter.key)).error is ErrorCode.NONE
    quorum.run_until(lambda: quorum.leader not in (None, old))
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert not old.driver.is_voter
    assert old.node_id not in quorum.elect().driver.voters


def test_the_voter_that_remains_when_the_other_one_leaves_leads(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=2, dynamic=True)
    old = quorum.elect()
    (remaining,) = quorum.followers()
    assert _change(quorum, RemoveVoter(old.voter.key)).error is ErrorCode.NONE
    quorum.run_until(lambda: remaining.driver.is_leader)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))


def test_a_follower_whose_disk_is_slow_with_a_voter_set_fetches_on_and_does_not_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum = Quorum(tmp_path, dynamic=True)
    leader = quorum.elect()
    slow, leaving = quorum.followers()
    quorum.run(1000)
    flush = slow.driver.log.flush

    def flush_slowly() -> None:
        flush()
        config = quorum.config
        quorum.clock.ms += config.fetch_timeout_ms + config.election_timeout_ms // 4
        monkeypatch.undo()

    monkeypatch.setattr(slow.driver.log, "flush", flush_slowly)
    asked = len(quorum.sent)
    assert _change(quorum, RemoveVoter(leaving.voter.key)).error is ErrorCode.NONE
    quorum.run(1000)
    assert not any(isinstance(request, Vote) for _, request in quorum.sent[asked:])
    assert quorum.leader is leader
    assert slow.driver.voters.ids == tuple(sorted((leader.node_id, slow.node_id)))


def test_a_removal_that_only_the_removed_leader_has_in_its_log_is_finished_by_it(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path, voters=2, dynamic=True)
    old = quorum.elect()
    (remaining,) = quorum.followers()
    quorum.cut = {remaining.node_id}
    assert _change(quorum, RemoveVoter(old.voter.key)).error is ErrorCode.REQUEST_TIMED_OUT
    quorum.run_until(lambda: not old.driver.is_leader)
    quorum.cut = set()
    quorum.run_until(lambda: remaining.driver.is_leader)
    assert remaining.driver.voters.ids == (remaining.node_id,)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))


def test_changes_of_voters_that_are_refused(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader, follower = quorum.elect(), quorum.followers()[0]
    newcomer = quorum.members[4].voter
    epoch = leader.driver.leader_epoch
    elsewhere = (Endpoint("OTHER", "host4", 4),)
    for request, error in (
        (AddVoter(newcomer._replace(directory_id=bytes(16)), 100), ErrorCode.INVALID_REQUEST),
        (AddVoter(newcomer._replace(endpoints=()), 100), ErrorCode.INVALID_REQUEST),
        (AddVoter(newcomer._replace(endpoints=elsewhere), 100), ErrorCode.INVALID_REQUEST),
        (
            UpdateVoter(follower.voter._replace(endpoints=elsewhere), leader.driver.leader_epoch),
            ErrorCode.INVALID_REQUEST,
        ),
        (AddVoter(follower.voter, 100), ErrorCode.DUPLICATE_VOTER),
        (AddVoter(newcomer, 100, cluster_id="no"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (RemoveVoter(ReplicaKey(7, b"\x07" * 16)), ErrorCode.VOTER_NOT_FOUND),
        (RemoveVoter(ReplicaKey(1, b"\x07" * 16)), ErrorCode.VOTER_NOT_FOUND),
        (UpdateVoter(newcomer, leader.driver.leader_epoch), ErrorCode.VOTER_NOT_FOUND),
        (UpdateVoter(follower.voter, 0), ErrorCode.FENCED_LEADER_EPOCH),
        (
            UpdateVoter(follower.voter._replace(kraft_versions=(0, 0)), epoch),
            ErrorCode.INVALID_REQUEST,
        ),
        (
            UpdateVoter(follower.voter._replace(kraft_versions=(-1, 1)), epoch),
            ErrorCode.INVALID_REQUEST,
        ),
    ):
        assert _change(quorum, request).error is error, request
    (reply,) = reply_to(quorum, follower, RemoveVoter(leader.voter.key))
    assert reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_static_voters_cannot_be_changed(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1)
    quorum.append("a")
    quorum.run(100)
    reply = _change(quorum, AddVoter(quorum.members[4].voter, 1000))
    assert reply.error is ErrorCode.UNSUPPORTED_VERSION


def _upgrade(leader: Member, validate_only: bool = False) -> None:
    """kraft.version 1, and the record the controller puts behind it."""
    epoch = leader.driver.leader_epoch
    leader.driver.upgrade_kraft_version(epoch, 1, validate_only)
    if not validate_only:
        leader.driver.append(epoch, ["upgraded"])


def test_static_voters_become_dynamic_ones_while_running_and_can_be_changed_then(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1)
    quorum.append("a")
    quorum.run(100)
    leader = quorum.elect()
    _upgrade(leader, validate_only=True)
    quorum.run(100)
    assert leader.driver.voters.kraft_version == 0
    _upgrade(leader)
    _upgrade(leader)  # what is under way is not begun again
    quorum.run_until(lambda: quorum.all_have("a", "upgraded", "upgraded"))
    for member in quorum.members.values():
        voters = member.driver.voters
        assert voters.kraft_version == 1
        assert list(voters) == [quorum.members[n].voter for n in (1, 2, 3)]
    assert quorum.elect() is leader, "nobody stood for election"
    info = leader.driver.describe_quorum()
    assert all(replica.log_end_offset > 0 for replica in info.voters)
    assert [replica.replica_id for replica in info.observers] == [4]
    assert _change(quorum, AddVoter(quorum.members[4].voter, 5000)).error is ErrorCode.NONE
    assert _change(quorum, RemoveVoter(leader.voter.key)).error is ErrorCode.NONE
    quorum.run_until(lambda: quorum.leader not in (None, leader))
    for member in quorum.members.values():
        member.stop()
    for member in quorum.members.values():
        member.start()
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "upgraded", "upgraded", "b"))
    assert {m.driver.voters.ids for m in quorum.members.values()} == {
        tuple(n for n in (1, 2, 3, 4) if n != leader.node_id)
    }


def test_kraft_version_waits_for_every_voter_to_tell_each_new_leader_about_itself(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path)
    away = quorum.followers()[-1]
    away.stop()
    quorum.append("a")
    quorum.run(3000)
    with pytest.raises(KafkaError, match=f"support it: {away.node_id} did not tell") as caught:
        _upgrade(quorum.elect())
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    away.start()
    quorum.run(3000)
    old = quorum.elect()
    _upgrade(old, validate_only=True)
    away.stop()
    old.driver.resign(old.driver.leader_epoch)
    quorum.run_until(lambda: quorum.leader not in (None, old))
    quorum.run(3000)
    with pytest.raises(KafkaError, match=str(away.node_id)):  # the old leader had known
        _upgrade(quorum.elect())
    away.start()
    quorum.run(3000)
    with pytest.raises(KafkaError) as caught:
        _upgrade(old)
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    _upgrade(quorum.elect())
    quorum.run_until(lambda: quorum.all_have("a", "upgraded"))


def test_a_voter_tells_a_leader_of_static_voters_once(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run(20_000)
    told = [request for _, request in quorum.sent if isinstance(request, UpdateVoter)]
    assert sorted(request.voter for request in told) == sorted(
        member.voter for member in quorum.followers()
    )


def test_an_upgrade_that_was_not_committed_is_undone_with_its_record(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    quorum.append("a")
    quorum.run(100)
    old = quorum.elect()
    quorum.cut = {old.node_id}
    _upgrade(old)
    quorum.run(10)
    assert old.driver.voters.kraft_version == 1, "effective when appended"
    quorum.run_until(lambda: quorum.leader not in (None, old))
    quorum.cut = set()
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert {m.driver.voters.kraft_version for m in quorum.members.values()} == {0}


def test_what_was_asked_for_an_earlier_change_is_no_answer_to_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody corrects the endpoint of a newcomer while the first one is still being asked."""
    quorum = Quorum(tmp_path, voters=3, observers=2, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader, newcomer = quorum.elect(), quorum.members[4].voter
    asked: dict[int, Callable[[Reply | None], None]] = {}
    send = quorum.send

    def hold(
        to: Peer, request: Outgoing, on_answer: Callable[[Reply | None], None], timeout_ms: int
    ) -> None:
        if isinstance(request, ProbeVersions):
            asked[to.port] = on_answer
        else:
            send(to, request, on_answer, timeout_ms)

    monkeypatch.setattr(quorum, "send", hold)
    wrong = newcomer._replace(endpoints=quorum.members[5].voter.endpoints)
    replies: list[VoterChangeReply] = []
    leader.driver.handle(AddVoter(wrong, 100), replies.append)
    quorum.run(200)
    leader.driver.handle(AddVoter(newcomer, 5_000), replies.append)
    quorum.run(10)
    asked[5](None)
    quorum.run(10)
    assert [reply.error for reply in replies] == [ErrorCode.REQUEST_TIMED_OUT]
    asked[4](VersionsReply(ErrorCode.NONE, (0, 1)))
    quorum.run(100)
    assert [reply.error for reply in replies] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    assert leader.driver.voters.get(4) == newcomer


def test_a_newcomer_that_never_fetched_is_not_added(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1, dynamic=True)
    quorum.members[4].stop()
    quorum.append("a")
    quorum.run(1000)
    assert _change(quorum, AddVoter(quorum.members[4].voter, 500)).error is (
        ErrorCode.REQUEST_TIMED_OUT
    )


def test_one_change_at_a_time_and_an_uncommitted_one_is_undone_with_its_record(
    tmp_path: Path,
) -> None:
    """K-12."""
    quorum = Quorum(tmp_path, voters=3, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    leader, victim = quorum.elect(), quorum.followers()[0]
    quorum.cut = {leader.node_id}
    replies: list[VoterChangeReply] = []
    for _ in range(2):
        leader.driver.handle(RemoveVoter(victim.voter.key), replies.append)
    quorum.run(10)
    assert victim.node_id not in leader.driver.voters, "effective when appended"
    assert [reply.error for reply in replies] == [ErrorCode.REQUEST_TIMED_OUT]
    quorum.run(8000)
    quorum.append("b")
    quorum.cut = set()
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert leader.driver.voters.ids == (1, 2, 3)
    assert len(replies) == 2


def test_a_voter_whose_endpoints_changed_tells_the_leader(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    moved = quorum.followers()[0]
    moved.driver.core.endpoints = (Endpoint("CONTROLLER", "elsewhere", moved.node_id),)
    quorum.run(5000)
    voter = quorum.elect().driver.voters.get(moved.node_id)
    assert voter is not None
    assert voter.endpoints[0].host == "elsewhere"


def test_a_voter_whose_endpoints_stand_in_another_order_has_nothing_to_tell(tmp_path: Path) -> None:
    """Apache Kafka writes them in the order of a hash map, and once more each time it is told."""
    quorum = Quorum(tmp_path, voters=3, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    core = quorum.followers()[0].driver.core
    core.endpoints = (*core.endpoints, Endpoint("INTERNAL", "inside", 9))
    quorum.run(5000)
    assert quorum.elect().driver.voters.get(core.node_id) == Voter(*core.key, core.endpoints)
    core.endpoints = core.endpoints[::-1]
    quorum.sent.clear()
    quorum.run(5000)
    assert not [request for _, request in quorum.sent if isinstance(request, UpdateVoter)]


def test_a_wiped_voter_is_another_replica_and_may_be_replaced(tmp_path: Path) -> None:
    """K-11."""
    import shutil

    quorum = Quorum(tmp_path, voters=3, dynamic=True)
    quorum.append("a")
    quorum.run_until(lambda: quorum.all_have("a"))
    wiped = quorum.followers()[0]
    old_key = wiped.voter.key
    wiped.stop()
    shutil.rmtree(wiped.path)
    wiped.path.mkdir()
    wiped.directory_id = b"\x77" * 16
    wiped.is_voter = False
    quorum._format(wiped)
    wiped.start()
    quorum.append("b")
    quorum.run_until(lambda: quorum.all_have("a", "b"))
    assert not wiped.driver.is_voter
    assert [o.replica_id for o in quorum.elect().driver.describe_quorum().observers] == [
        wiped.node_id
    ]
    assert _change(quorum, RemoveVoter(old_key)).error is ErrorCode.NONE
    assert _change(quorum, AddVoter(wiped.voter, 3000)).error is ErrorCode.NONE
    quorum.run(100)
    assert wiped.driver.is_voter


def test_who_may_join_by_itself_does(tmp_path: Path) -> None:
    from replication.raft.events import RaftConfig

    quorum = Quorum(
        tmp_path, voters=3, observers=1, dynamic=True, config=RaftConfig(auto_join=True)
    )
    quorum.append("a")
    quorum.run_until(lambda: quorum.members[4].driver.is_voter)
    assert quorum.elect().driver.voters.ids == (1, 2, 3, 4)


# --- what a quorum tells about itself -----------------------------------------------------------


def test_describe_quorum_tells_how_far_everybody_is(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, voters=3, observers=1)
    quorum.append("a")
    quorum.run(2000)
    leader = quorum.elect()
    info = leader.driver.describe_quorum()
    assert (info.leader_id, info.leader_epoch, info.high_watermark) == (leader.node_id, 1, 2)
    assert [row.log_end_offset for row in info.voters + info.observers] == [2, 2, 2, 2]
    wall_ms = quorum.clock.wall_ms()
    for row in info.voters + info.observers:
        assert wall_ms - 600 <= row.last_fetch_timestamp <= wall_ms
        assert wall_ms - 600 <= row.last_caught_up_timestamp <= wall_ms
    assert [row.replica_id for row in info.observers] == [4]
    assert [node.node_id for node in info.nodes] == [1, 2, 3]
