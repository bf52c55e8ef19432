"""Runs a transcript: commands for a quorum of real drivers, and what it did, told below each.

A transcript is a text file. A line without indent is a command, the indented lines below it are the
story: who became what and when (ms since the start), what was committed. Lines with # are for the
reader. Commands:

    quorum 3 [observers 1] [dynamic]   make nodes 1.. on empty disks and start them
    run MS                             let time pass
    elect                              let time pass until somebody leads
    append TEXT...                     the leader appends these records; nothing happens yet
    append-at N TEXT...                so does node N, which believes that it leads
    stop N | start N                   a process dies, or comes back with its disk
    cut N | heal                       nothing reaches or leaves node N; all links work again
    farewell N                         node N is told to shut down
    snapshot N                         node N writes a snapshot and gives up the log below it
    add-voter N | remove-voter N       asked of the leader; runs until it answers
    ask-remove-voter M N               node M is asked to remove N; nobody waits for the answer
    logs                               what is in each log: epoch:record, * from the snapshot
    voters                             who votes, as each node sees it

`REWRITE=1 pytest tests/raft` writes the stories as they are now: read the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from replication.raft.events import AddVoter, RemoveVoter
from replication.raft.snapshots import SnapshotId
from tests.replication.raft_quorum import Member, Quorum

INDENT = "    "


class Story:
    """One transcript as it is told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._seen: dict[int, tuple[str, int]] = {}
        self._began_ms = 0
        self._quorum: Quorum
        self._commands: dict[str, Callable[..., None]] = {
            "quorum": self._start_quorum,
            "run": self._run,
            "elect": self._elect,
            "append": self._append,
            "append-at": self._append_at,
            "stop": self._stop,
            "start": self._start,
            "cut": self._cut,
            "heal": self._heal,
            "farewell": self._farewell,
            "snapshot": self._snapshot,
            "add-voter": self._add_voter,
            "remove-voter": self._remove_voter,
            "ask-remove-voter": self._ask_remove_voter,
            "logs": self._logs,
            "voters": self._voters,
        }

    def tell(self, script: str) -> str:
        """The transcript with the story as it went this time."""
        told: list[str] = []
        for line in script.splitlines():
            if line.startswith(INDENT):
                continue
            told.append(line)
            if line and not line.startswith("#"):
                self._lines = []
                command, *words = line.split()
                self._commands[command](*words)
                told += [INDENT + text for text in self._lines]
        return "\n".join(told) + "\n"

    # --- what happens ---------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._lines.append(f"{self._quorum.clock.ms - self._began_ms:5d} {text}")

    def _look(self, member: Member) -> None:
        """Tell what a turn changed."""
        core = member.driver.core
        role = core.role.value
        if role == "follower":
            role = f"follower of {core.leader_id}"
        state = f"{role}, epoch {core.epoch}"
        before, delivered = self._seen.get(member.node_id, ("", 0))
        if state != before:
            self._say(f"{member.node_id} is {state}")
        records = member.records
        if len(records) < delivered:
            delivered = 0
        if records[delivered:]:
            self._say(f"{member.node_id} has committed {' '.join(records[delivered:])}")
        self._seen[member.node_id] = (state, len(records))

    # --- commands -------------------------------------------------------------------------------

    def _start_quorum(self, voters: str, *rest: str) -> None:
        observers = int(rest[rest.index("observers") + 1]) if "observers" in rest else 0
        self._quorum = Quorum(self._path, int(voters), observers, dynamic="dynamic" in rest)
        self._began_ms = self._quorum.clock.ms
        self._quorum.on_turn = self._look

    def _run(self, ms: str) -> None:
        self._quorum.run(int(ms))

    def _elect(self) -> None:
        self._quorum.elect()

    def _append(self, *records: str) -> None:
        self._quorum.append(*records)

    def _append_at(self, number: str, *records: str) -> None:
        driver = self._member(number).driver
        driver.append(driver.leader_epoch, records)

    def _member(self, number: str) -> Member:
        return self._quorum.members[int(number)]

    def _stop(self, number: str) -> None:
        self._member(number).stop()

    def _start(self, number: str) -> None:
        self._seen.pop(int(number), None)
        self._member(number).start()

    def _cut(self, number: str) -> None:
        self._quorum.cut.add(int(number))

    def _heal(self) -> None:
        self._quorum.cut.clear()

    def _farewell(self, number: str) -> None:
        self._member(number).driver._stopping = True

    def _snapshot(self, number: str) -> None:
        member = self._member(number)
        last = member.recorder.batches[-1]
        snapshot_id = SnapshotId(last.last_offset + 1, last.epoch)
        member.driver.write_snapshot(snapshot_id, 0, list(member.records))
        member.driver.turn()
        self._say(f"{number} wrote {snapshot_id.file_name}")

    def _add_voter(self, number: str) -> None:
        self._change(AddVoter(self._member(number).voter, 2000))

    def _remove_voter(self, number: str) -> None:
        self._change(RemoveVoter(self._member(number).voter.key))

    def _ask_remove_voter(self, asked: str, number: str) -> None:
        def told(reply: Any) -> None:
            self._say(f"{asked} answers {reply.error.name}")

        self._member(asked).driver.handle(RemoveVoter(self._member(number).voter.key), told)

    def _change(self, request: Any) -> None:
        replies: list[Any] = []
        self._quorum.elect().driver.handle(request, replies.append)
        self._quorum.run_until(lambda: bool(replies))
        reply = replies[0]
        self._say(
            f"the answer is {reply.error.name}" + (f": {reply.message}" if reply.message else "")
        )

    def _logs(self) -> None:
        for member in self._quorum.members.values():
            if member.is_up:
                self._lines.append(f"{member.node_id}: " + " ".join(_log(member)))

    def _voters(self) -> None:
        for member in self._quorum.members.values():
            if member.is_up:
                ids = ", ".join(map(str, member.driver.voters.ids)) or "nobody"
                self._lines.append(f"{member.node_id}: {ids}")


def _log(member: Member) -> list[str]:
    log = member.driver.log
    words = []
    if log.latest_snapshot is not None and log.latest_snapshot.offset > 0:
        content = log.read_snapshot(log.latest_snapshot)
        words = ["*" + value.decode() for value in content.values]
    for batch in log.batches(log.start_offset, log.end_offset):
        epoch = batch.header.leader_epoch
        words += [f"{epoch}:{value.decode()}" for value in batch.values()] or [f"{epoch}:control"]
    return words
