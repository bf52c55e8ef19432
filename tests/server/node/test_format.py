"""Formatting a node's directories, before its first start in a cluster."""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import os
import stat
from pathlib import Path

import pytest

from replication.controller.scram import MECHANISMS, scram_record
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.log import RaftLog
from replication.raft.snapshots import SnapshotId, read_snapshot, write_snapshot
from server.commands.main import main
from server.config.kafka_config import KafkaConfig
from server.node.controller_server import bootstrap_records
from server.node.format import FormatError, FormatOptions, feature_levels, format_node
from storage import files
from storage.checkpoint import META_PROPERTIES, DirectoryLock, read_meta_properties
from storage.config import SystemClock
from storage.directories.log_dirs import LogDirError
from wire.messages.metadata_records import FeatureLevelRecord
from wire.messages.raft_records import KRaftVersionRecord, VotersRecord

CLUSTER = "JEXY6aqzQY-32P5TStzaFg"
FIRST_CHECKPOINT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
DIRECTORY_TEXT = "MvDxzVmcRsaTz33bUuRU6A"


def config(directory: Path, **changes: str) -> KafkaConfig:
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{directory}/a,{directory}/b",
    }
    values |= {key.replace("_", "."): value for key, value in changes.items()}
    return KafkaConfig({key: value for key, value in values.items() if value})


def run(configuration: KafkaConfig, **options: object) -> list[str]:
    numbers = itertools.count(1 << 100)
    given = FormatOptions(**{"cluster_id": CLUSTER, **options})  # type: ignore[arg-type]
    return format_node(configuration, given, lambda: next(numbers).to_bytes(16, "big"), 1000)


def voters(directory: Path) -> VotersRecord:
    version, record = read_snapshot(directory / "a" / FIRST_CHECKPOINT).controls
    assert KRaftVersionRecord.decode(version.value, 0).kraft_version == 1
    return VotersRecord.decode(record.value, 0)


def test_every_directory_gets_an_identity_and_the_features(tmp_path: Path) -> None:
    assert len(run(config(tmp_path), standalone=True)) == 2
    ids = set()
    for name in ("a", "b"):
        identity = read_meta_properties(tmp_path / name / META_PROPERTIES)
        assert identity is not None
        assert (identity.cluster_id, identity.node_id) == (CLUSTER, 1)
        ids.add(identity.directory_id)
        content = read_snapshot(tmp_path / name / "bootstrap.checkpoint")
        records = [MetadataRecordSerde().decode(value) for value in content.values]
        assert (records[0].name, records[0].feature_level) == ("metadata.version", 30)
        assert "kraft.version" not in {r.name for r in records}
    assert len(ids) == 2


def test_users_may_be_there_from_the_first_start_on(tmp_path: Path) -> None:
    salt = base64.b64encode(b"salt").decode()
    given = [
        'SCRAM-SHA-256=[name=alice,password="s=1",iterations=8192]',
        f"SCRAM-SHA-512=[name=bob,saltedpassword={salt},salt={salt}]",
    ]
    run(config(tmp_path), standalone=True, add_scram=given)
    path = tmp_path / "a" / "bootstrap.checkpoint"
    assert path.stat().st_mode & 0o777 == 0o600
    records = [MetadataRecordSerde().decode(value) for value in read_snapshot(path).values]
    alice, bob = records[-2:]
    salted = hashlib.pbkdf2_hmac("sha256", b"s=1", alice.salt, 8192)
    expected = scram_record("alice", MECHANISMS["SCRAM-SHA-256"], salted, alice.salt, 8192)
    assert alice == expected
    assert len(alice.salt) <= 26
    assert alice.salt.isalnum()
    assert (bob.name, bob.mechanism, bob.salt, bob.iterations) == ("bob", 2, b"salt", 4096)


@pytest.mark.parametrize("leftover", [False, True])
def test_nobody_else_may_read_users_credentials_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: bool
) -> None:
    """Nor what a try that was killed then leaves; one without users may have left a file before."""
    if leftover:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / f"{SnapshotId(0, 0).file_name}.part").touch(0o644)
    fsync, modes = files.fsync, []

    def watched(fd: int) -> None:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            modes.append(stat.S_IMODE(mode))
        fsync(fd)

    monkeypatch.setattr(files, "fsync", watched)
    alone = config(tmp_path, listeners="PLAINTEXT://:9092", controller_quorum_bootstrap_servers="")
    run(alone, add_scram=["SCRAM-SHA-256=[name=alice,password=secret]"])
    assert modes[0] == 0o600


def test_a_node_alone_is_formatted_without_saying_who_votes(tmp_path: Path) -> None:
    """It has no listener for other controllers, which --standalone would ask for."""
    alone = config(tmp_path, listeners="PLAINTEXT://:9092", controller_quorum_bootstrap_servers="")
    run(alone, add_scram=["SCRAM-SHA-256=[name=alice,password=secret]"])
    path = tmp_path / "a" / "bootstrap.checkpoint"
    records = [MetadataRecordSerde().decode(value) for value in read_snapshot(path).values]
    assert records[-1].name == "alice"
    assert not (tmp_path / "a" / FIRST_CHECKPOINT).exists()


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "SCRAM-SHA-1=[name=a,password=hunter2]",
        "SCRAM-SHA-256=name=a,password=hunter2",
        "SCRAM-SHA-256=[password=hunter2]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=]",
        "SCRAM-SHA-256=[name=a,password=hunter2,password=hunter2]",
        "SCRAM-SHA-256=[name=a,password=hunter2,color=red]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=4095]",
        "SCRAM-SHA-256=[name=a,password=hunter2,iterations=16385]",
        "SCRAM-SHA-256=[name=a,password=hunter2,salt=?]",
        "SCRAM-SHA-256=[name=a,saltedpassword=aHVudGVyMg==]",
        "SCRAM-SHA-256=[name=a,password=hunter2,saltedpassword=aHVudGVyMg==,salt=aaaa]",
    ],
)
def test_a_user_that_cannot_be_is_refused_without_the_password(
    tmp_path: Path, argument: str
) -> None:
    with pytest.raises(FormatError) as failed:
        run(config(tmp_path), standalone=True, add_scram=[argument])
    assert "hunter2" not in str(failed.value)
    assert "aHVudGVyMg" not in str(failed.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"add_scram": ["SCRAM-SHA-256=[name=a,password=hunter2\udcff]"]}, "UTF-8"),
        ({"add_scram": ["SCRAM-SHA-256=[name=\udcff,password=hunter2]"]}, "UTF-8"),
        ({"add_scram": [f"SCRAM-SHA-256=[name={'a' * 40_000},password=hunter2]"]}, "32767"),
        (
            {
                "add_acl": [
                    r'{"principal": "User:\ud800", "operation": "READ", "resource_type": "TOPIC",'
                    ' "resource_name": "orders"}'
                ]
            },
            "UTF-8",
        ),
    ],
    ids=["password", "user", "long", "principal"],
)
def test_what_no_record_can_hold_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(FormatError, match=expected) as failed:
        run(config(tmp_path), standalone=True, **options)
    assert "hunter2" not in str(failed.value)
    assert not (tmp_path / "a").exists()


def test_a_standalone_controller_is_the_first_voter(tmp_path: Path) -> None:
    run(config(tmp_path), standalone=True)
    (voter,) = voters(tmp_path).voters
    identity = read_meta_properties(tmp_path / "a" / META_PROPERTIES)
    assert identity is not None
    assert (voter.voter_id, voter.voter_directory_id) == (1, identity.directory_id)
    assert [(e.name, e.host, e.port) for e in voter.endpoints] == [
        ("CONTROLLER", "localhost", 9093)
    ]


def test_initial_controllers_give_this_node_its_directory_id(tmp_path: Path) -> None:
    text = f"1@a:9093:{DIRECTORY_TEXT},2@b:9093:07R5amHmR32VDA6jHkGbTA"
    run(config(tmp_path), initial_controllers=text)
    assert [voter.voter_id for voter in voters(tmp_path).voters] == [1, 2]
    line = f"directory.id={DIRECTORY_TEXT}"
    assert line in (tmp_path / "a" / META_PROPERTIES).read_text()
    assert line not in (tmp_path / "b" / META_PROPERTIES).read_text()


def test_a_node_that_joins_has_no_voters_of_its_own(tmp_path: Path) -> None:
    run(config(tmp_path), no_initial_controllers=True)
    assert not (tmp_path / "a" / FIRST_CHECKPOINT).exists()
    assert (tmp_path / "a" / META_PROPERTIES).exists()


def test_static_voters_need_no_flag(tmp_path: Path) -> None:
    static = config(
        tmp_path,
        controller_quorum_voters="1@localhost:9093",
        controller_quorum_bootstrap_servers="",
    )
    run(static)
    assert not (tmp_path / "a" / FIRST_CHECKPOINT).exists()


def test_a_formatted_directory_is_left_alone(tmp_path: Path) -> None:
    run(config(tmp_path), standalone=True)
    before = (tmp_path / "a" / META_PROPERTIES).read_text()
    with pytest.raises(FormatError, match="--ignore-formatted"):
        run(config(tmp_path), standalone=True)
    assert run(config(tmp_path), standalone=True, ignore_formatted=True) == [
        "all log directories are formatted already"
    ]
    assert (tmp_path / "a" / META_PROPERTIES).read_text() == before


def test_what_a_cut_short_try_left_is_formatted_again(tmp_path: Path) -> None:
    run(config(tmp_path), standalone=True)
    (tmp_path / "a" / META_PROPERTIES).unlink()
    run(config(tmp_path), standalone=True, ignore_formatted=True)
    assert (tmp_path / "a" / META_PROPERTIES).exists()


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(LogDirError, match=r"holiday\.jpg"):
        run(config(tmp_path), standalone=True)
    assert not (tmp_path / "a").exists()


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    run(config(tmp_path), standalone=True)
    with pytest.raises(LogDirError, match="belongs to cluster"):
        run(config(tmp_path), standalone=True, ignore_formatted=True, cluster_id="other")


def test_a_full_disk_is_named_by_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: object) -> list[str]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as write(2) says it: no name

    monkeypatch.setattr("server.node.format.format_node", full)
    (tmp_path / "server.properties").write_text(f"log.dirs={tmp_path}/a\n")
    assert main(["format", "-c", str(tmp_path / "server.properties"), "-t", CLUSTER]) == 1
    assert capsys.readouterr().err == (
        f"barnabas: cannot format {tmp_path}/a: No space left on device\n"
    )


def test_a_directory_in_use_is_not_formatted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    lock = DirectoryLock(tmp_path / "a")
    assert lock.try_acquire()
    with pytest.raises(LogDirError, match="in use"):
        run(config(tmp_path), standalone=True)
    lock.release()


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, {}, "--standalone"),
        (
            {"process_roles": "broker", "listeners": "PLAINTEXT://:9"},
            {"standalone": True},
            "no con",
        ),
        ({"controller_quorum_voters": "1@localhost:9093"}, {"standalone": True}, "static"),
        ({}, {"initial_controllers": "1@a:9093"}, "DIRECTORY-ID"),
        ({}, {"initial_controllers": f"1@a:x:{DIRECTORY_TEXT}"}, "DIRECTORY-ID"),
        ({}, {"standalone": True, "features": ["kraft.version=0"]}, "expected 1"),
        ({}, {"standalone": True, "features": ["foo=1"]}, "expected one of"),
        ({}, {"standalone": True, "features": ["group.version=9"]}, "0 to 1"),
        ({}, {"standalone": True, "features": ["group.version"]}, "NAME=LEVEL"),
        ({}, {"standalone": True, "release_version": "9.9"}, "4.3-IV0"),
    ],
)
def test_a_mistake_says_what_to_do(
    tmp_path: Path, changes: dict[str, str], options: dict[str, object], expected: str
) -> None:
    with pytest.raises(FormatError, match=expected):
        run(config(tmp_path, **changes), **options)
    assert not (tmp_path / "a").exists()


def test_an_older_release_starts_with_its_own_features() -> None:
    levels = feature_levels(FormatOptions(CLUSTER, standalone=True, release_version="4.0"))
    assert levels == {
        "metadata.version": 25, "kraft.version": 1, "transaction.version": 2, "group.version": 1,
    }  # fmt: skip
    assert feature_levels(FormatOptions(CLUSTER, release_version="3.9-IV0")) == {
        "metadata.version": 21,
        "kraft.version": 0,
    }


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_cluster_may_start_with_older_transactions(level: int) -> None:
    options = FormatOptions(CLUSTER, features=[f"transaction.version={level}"])
    assert feature_levels(options)["transaction.version"] == level
    with pytest.raises(FormatError, match="expected 0 to 2"):
        feature_levels(options._replace(features=["transaction.version=3"]))


def test_a_feature_is_not_turned_on_that_the_metadata_version_has_no_records_for() -> None:
    """Eligible leader replicas would be left out of each record: the ISR may be empty then, and
    nobody would know who may lead."""
    elr = ["eligible.leader.replicas.version=1"]
    options = FormatOptions(CLUSTER, features=elr, release_version="4.0-IV0")
    with pytest.raises(FormatError, match=r"depends on metadata\.version level 23"):
        feature_levels(options)
    assert feature_levels(options._replace(release_version="4.0-IV1"))[elr[0][:-2]] == 1


@pytest.mark.parametrize("in_the_log", [False, True], ids=["a file of its own", "in the log"])
def test_the_first_controller_takes_the_features_from_either_checkpoint(
    tmp_path: Path, in_the_log: bool
) -> None:
    run(config(tmp_path, log_dirs=f"{tmp_path}/a"), standalone=True)
    serde = MetadataRecordSerde()
    level = FeatureLevelRecord(name="metadata.version", feature_level=25)
    if in_the_log:  # as Apache Kafka's kafka-storage does it with initial controllers
        first = read_snapshot(tmp_path / "a" / FIRST_CHECKPOINT)
        directory = tmp_path / "a" / "__cluster_metadata-0"
        write_snapshot(directory, SnapshotId(0, 0), 1, 1, first.controls, [serde.encode(level)])
    log = RaftLog.open(tmp_path / "a", SystemClock())
    try:
        records = bootstrap_records(tmp_path / "a", log, serde)
    finally:
        log.close()
    levels = {record.name: record.feature_level for record in records}  # type: ignore[attr-defined]
    assert (levels == {"metadata.version": 25}) is in_the_log
    assert "metadata.version" in levels
