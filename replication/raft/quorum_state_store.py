"""The file `quorum-state`: epoch, vote and leader a voter must never forget (K-1).

One JSON object, as Apache Kafka 4.3 writes it. With static voters (kraft.version 0):
    {"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,
     "currentVoters":[{"voterId":1}],"data_version":0}
With dynamic voters (kraft.version 1):
    {"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAA...","data_version":1}
It is replaced as a whole (temporary file, fsync, rename, fsync of the directory), never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replication.raft.own_events import NO_LEADER, NO_VOTE, ElectionState
from replication.raft.voter_set import ZERO_DIRECTORY_ID
from storage import files
from storage.checkpoint import atomic_write
from wire.primitives import uuid_from_text, uuid_to_text

FILE_NAME = "quorum-state"


class CorruptQuorumState(Exception):
    """The file is there but not in its format: this voter may not take part blindly."""


def read_quorum_state(directory: Path) -> ElectionState | None:
    """The stored state; None when the file does not exist. Raises CorruptQuorumState."""
    path = directory / FILE_NAME
    try:
        text = files.read_file(path)
    except FileNotFoundError:
        return None
    import json

    try:
        data = json.loads(text)
        if data["data_version"] not in (0, 1):
            raise ValueError(f"data_version {data['data_version']}")
        return ElectionState(
            epoch=int(data["leaderEpoch"]),
            leader_id=int(data.get("leaderId", NO_LEADER)),
            voted_id=int(data.get("votedId", NO_VOTE)),
            voted_directory_id=uuid_from_text(data["votedDirectoryId"])
            if "votedDirectoryId" in data
            else ZERO_DIRECTORY_ID,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptQuorumState(f"{path} is not a quorum-state file: {error}") from error


def write_quorum_state(
    directory: Path, state: ElectionState, voters: Sequence[int], kraft_version: int
) -> None:
    """Replace the file durably. Raises OSError with the old content still in place."""
    common = f'"leaderId":{state.leader_id},"leaderEpoch":{state.epoch},"votedId":{state.voted_id},'
    if kraft_version == 0:
        listed = ",".join(f'{{"voterId":{voter}}}' for voter in voters)
        text = (
            f'{{"clusterId":"",{common}"appliedOffset":0,'
            f'"currentVoters":[{listed}],"data_version":0}}'
        )
    else:
        directory_id = uuid_to_text(state.voted_directory_id)
        text = f'{{{common}"votedDirectoryId":"{directory_id}","data_version":1}}'
    atomic_write(directory / FILE_NAME, text.encode())
