"""Small files: whole or absent, and what Java wrote is read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import javaproperties
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import files
from storage.checkpoint import (
    CleanShutdownFile,
    CorruptCheckpoint,
    DirectoryLock,
    MetaProperties,
    OffsetCheckpoint,
    atomic_write,
    lock_holder,
    read_leader_epochs,
    read_meta_properties,
    read_partition_metadata,
    write_leader_epochs,
    write_meta_properties,
    write_partition_metadata,
)
from wire.primitives import TopicPartition, uuid_from_text

TOPIC_ID = uuid_from_text("MkDr7wtTRg6dSWPkFpwZjQ")


# --- atomic_write ------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write_fully", "fsync", "replace", "open_file"])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(files, call, fail)
    with pytest.raises(OSError, match="injected"):
        atomic_write(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_content_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("write_fully", "fsync", "replace", "fsync_directory"):
        original = getattr(files, name)

        def record(*args: object, name: str = name, original: object = original) -> object:
            calls.append(name)
            return original(*args)  # type: ignore[operator]

        monkeypatch.setattr(files, name, record)
    atomic_write(tmp_path / "file", b"x")
    assert calls == ["write_fully", "fsync", "replace", "fsync_directory"]


# --- checkpoints -------------------------------------------------------------------------------


def test_an_offset_checkpoint_is_kafkas_text(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "recovery-point-offset-checkpoint")
    assert checkpoint.read() == {}
    offsets = {TopicPartition("orders", 0): 5, TopicPartition("a.b_c-d", 12): 2**40}
    checkpoint.write(offsets)
    assert checkpoint.path.read_text() == "0\n2\norders 0 5\na.b_c-d 12 1099511627776\n"
    assert checkpoint.read() == offsets
    checkpoint.path.write_bytes(b"")  # as Kafka creates it
    assert checkpoint.read() == {}
    checkpoint.write({})
    assert checkpoint.path.read_text() == "0\n0\n"
    assert checkpoint.read() == {}


@given(
    st.dictionaries(
        st.builds(
            TopicPartition,
            st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True),
            st.integers(0, 2**31 - 1),
        ),
        st.integers(0, 2**63 - 1),
        max_size=20,
    )
)
@settings(max_examples=30, deadline=None)
def test_offsets_come_back(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]
) -> None:
    checkpoint = OffsetCheckpoint(tmp_path_factory.mktemp("checkpoint") / "c")
    checkpoint.write(offsets)
    assert checkpoint.read() == offsets


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n", 1),
        ("1\n0\n", 1),
        ("x\n0\n", 1),
        ("0\n", 2),
        ("0\n-1\n", 2),
        ("0\n2\na 0 1\n", 2),
        ("0\n0\na 0 1\n", 2),
        ("0\n1\na 0\n", 3),
        ("0\n1\na 0 1 2\n", 3),
        ("0\n2\na 0 1\na b 1\n", 4),
        ("0\n1\na 0 -1\n", 3),
        ("0\n1\na 0 \u0661\n", 3),
        ("0\n2\na 0 1\na 0 2\n", 4),
        ("0\n1\n\n", 3),
    ],
)
def test_a_malformed_checkpoint_is_named_with_its_line(
    tmp_path: Path, text: str, line: int
) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint) as error:
        OffsetCheckpoint(path).read()
    assert error.value.line == line
    assert f"replication-offset-checkpoint, line {line}" in str(error.value)


def test_bytes_that_are_no_text_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"0\n1\n\xff\xfe 0 1\n")
    with pytest.raises(CorruptCheckpoint, match="line 3"):
        OffsetCheckpoint(path).read()


def test_leader_epochs_are_kafkas_text(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    assert read_leader_epochs(path) == []
    write_leader_epochs(path, [(0, 0), (3, 17)])
    assert path.read_text() == "0\n2\n0 0\n3 17\n"
    assert read_leader_epochs(path) == [(0, 0), (3, 17)]


# --- partition.metadata ------------------------------------------------------------------------


def test_partition_metadata_has_kafkas_two_lines_and_no_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    assert read_partition_metadata(path) is None
    write_partition_metadata(path, TOPIC_ID)
    assert path.read_text() == "version: 0\ntopic_id: MkDr7wtTRg6dSWPkFpwZjQ"
    assert read_partition_metadata(path) == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version: 1\ntopic_id: MkDr7wtTRg6dSWPkFpwZjQ",
        "version: 0",
        "version: 0\ntopic_id: ",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        "version: 0\ntopic_id: short",
        "version: 0\ntopic: MkDr7wtTRg6dSWPkFpwZjQ",
    ],
)
def test_partition_metadata_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "partition.metadata"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint, match=r"partition\.metadata"):
        read_partition_metadata(path)


# --- meta.properties ---------------------------------------------------------------------------


def test_meta_properties_come_back(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    assert read_meta_properties(path) is None
    for properties in (
        MetaProperties("AZ09-_abcdefghijklmnopq", 3, TOPIC_ID),
        MetaProperties("odd : cluster = id #1 \\", 0, None),
        MetaProperties("\u2603 \n\xe9 \U0001f600", 0, None),
    ):
        write_meta_properties(path, properties)
        assert read_meta_properties(path) == properties


def test_the_java_properties_library_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    write_meta_properties(path, MetaProperties("a:b=c #!\\", 7, TOPIC_ID))
    with path.open() as file:
        assert javaproperties.load(file) == {
            "cluster.id": "a:b=c #!\\",
            "directory.id": "MkDr7wtTRg6dSWPkFpwZjQ",
            "node.id": "7",
            "version": "1",
        }


def test_what_java_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    values = {"version": "1", "cluster.id": "x:y=z \u00e9", "node.id": "1"}
    path.write_text(javaproperties.dumps(values, comments="\nby java"))
    assert read_meta_properties(path) == MetaProperties("x:y=z \u00e9", 1, None)
    path.write_text("#\n#Mon Jan 01\n\nbroker.id : 4\nversion = 0\n! c\ncluster.id=abc\n")
    assert read_meta_properties(path) == MetaProperties("abc", 4, None)


@given(st.text(st.characters(codec="latin-1"), min_size=1))
@settings(max_examples=100, deadline=None)
def test_any_value_that_the_library_escapes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("meta") / "meta.properties"
    values = {"version": "1", "cluster.id": text, "node.id": "1"}
    path.write_text(javaproperties.dumps(values))
    if text.strip():
        read = read_meta_properties(path)
        assert read is not None
        assert read.cluster_id.strip() == text.strip()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("version=2\ncluster.id=a\nnode.id=1\n", 1),
        ("version=1\ncluster.id=a\n", 1),
        ("version=1\nnode.id=1\n", 1),
        ("version=1\ncluster.id=a\nnode.id=one\n", 3),
        ("version=1\ncluster.id=a\nnode.id=-1\n", 3),
        ("version=1\ncluster.id=a\nnode.id=1\ndirectory.id=x\n", 4),
        ("#\nversion=1\ncluster.id\n", 3),
        ("version=1\ncluster.id=a\\\nnode.id=1", 1),
        ("version=1\ncluster.id=\\u12\n", 2),
    ],
)
def test_malformed_meta_properties_are_named_with_the_line(
    tmp_path: Path, text: str, line: int
) -> None:
    path = tmp_path / "meta.properties"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint) as error:
        read_meta_properties(path)
    assert error.value.line == line


# --- clean shutdown and lock -------------------------------------------------------------------


def test_the_clean_shutdown_file_carries_the_broker_epoch(tmp_path: Path) -> None:
    marker = CleanShutdownFile(tmp_path)
    assert not marker.exists()
    assert marker.read_broker_epoch() == -1
    marker.write(42)
    assert marker.path.read_text() == '{"version":0,"brokerEpoch":42}'
    assert marker.exists()
    assert marker.read_broker_epoch() == 42
    marker.delete()
    marker.delete()
    assert not marker.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":0}', '{"brokerEpoch":"x"}', "\x00"])
def test_an_unreadable_clean_shutdown_file_is_clean_with_an_unknown_epoch(
    tmp_path: Path, text: str
) -> None:
    """Kafka before 3.8 wrote it empty."""
    marker = CleanShutdownFile(tmp_path)
    marker.path.write_text(text)
    assert marker.exists()
    assert marker.read_broker_epoch() == -1


def test_only_one_holds_the_lock_of_a_directory(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    second.release()
    assert (tmp_path / ".lock").read_bytes() == b""


def test_the_lock_is_also_the_kind_that_java_takes(tmp_path: Path) -> None:
    """Java's FileChannel uses POSIX record locks, which flock does not see."""
    lock = DirectoryLock(tmp_path)
    assert lock.try_acquire()
    program = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(lock.path)]
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 1
    lock.release()
    assert subprocess.run(command, check=False).returncode == 0


def test_others_can_tell_who_holds_a_directory(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    program = (
        "import sys, pathlib\n"
        "from storage.checkpoint import DirectoryLock\n"
        "lock = DirectoryLock(pathlib.Path(sys.argv[1]))\n"
        "print(lock.try_acquire(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert lock_holder(tmp_path) == other.pid
        other.kill()
    assert lock_holder(tmp_path) is None
