"""kafka-dump-log reads every file of the data directory without a complaint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from testkit.clients.java_tools import Finished, JavaTools

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def written(
    java_tools: JavaTools, make_broker: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A data directory of a broker that was stopped, and the text its log ended with."""
    own = make_broker(tmp_path_factory.mktemp("dump-log"), {"log.index.interval.bytes": 100})
    own.start()
    where = ("--bootstrap-server", own.bootstrap_servers)
    try:
        java_tools.run("TopicCommand", *where, "--create", "--topic", "logged",
                       "--config", "segment.bytes=1048576",
                       "--config", "max.message.bytes=100000").ok()  # fmt: skip
        keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            lines = "".join(f"key-{i}:{codec} value {i}\n" for i in range(20))
            java_tools.run("ConsoleProducer", *where, "--topic", "logged", *keyed,
                           "--compression-codec", codec, stdin=lines).ok()  # fmt: skip
        java_tools.run("ProducerPerformance", *where, "--topic", "logged", "--num-records", "4000",
                       "--record-size", "1000", "--throughput", "-1").ok()  # fmt: skip
        java_tools.run("ConsoleConsumer", *where, "--topic", "logged", "--from-beginning",
                       "--group", "readers", "--max-messages", "100").ok()  # fmt: skip
        java_tools.run("ConfigCommand", *where, "--alter", "--topic", "logged",
                       "--add-config", "retention.ms=-1").ok()  # fmt: skip
    finally:
        own.stop()
    return Path(own.data_dir), own.log_text()


@pytest.fixture
def dump(java_tools: JavaTools) -> Any:
    def run(*files: Path, options: tuple[str, ...] = ()) -> Finished:
        names = ",".join(str(file) for file in files)
        finished = java_tools.run("DumpLogSegments", "--files", names, *options)
        finished.ok()
        for complaint in ("Exception", "mismatch", "Found illegal", "isvalid: false", "corrupt"):
            assert complaint not in finished.text, finished.text[-2000:]
        return finished

    return run


def logs(data_dir: Path, partition: str, suffix: str = ".log") -> list[Path]:
    found = sorted((data_dir / partition).glob(f"*{suffix}"))
    assert found, f"no *{suffix} in {data_dir / partition}"
    return found


def test_batches_and_records_are_printed(written: Any, dump: Any) -> None:
    data_dir, _ = written
    text = dump(logs(data_dir, "logged-0")[0], options=("--print-data-log", "--deep-iteration")).out
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in text
        assert f"key: key-7 payload: {codec} value 7" in text
    offsets = [int(o) for o in re.findall(r"^\| offset: (\d+) ", text, re.M)]
    assert offsets == list(range(len(offsets)))
    assert "isvalid: true" in text


def test_all_segments_follow_each_other(written: Any, dump: Any) -> None:
    data_dir, _ = written
    files = logs(data_dir, "logged-0")
    assert len(files) >= 4
    next_offset = 0
    for file in files:
        assert int(file.stem) == next_offset
        for first, last in re.findall(
            r"^baseOffset: (\d+) lastOffset: (\d+)", dump(file).out, re.M
        ):
            assert int(first) == next_offset
            next_offset = int(last) + 1
    assert next_offset == 100 + 4000


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_indexes_pass_the_sanity_check_and_point_at_batches(
    suffix: str, written: Any, dump: Any
) -> None:
    data_dir, _ = written
    files = logs(data_dir, "logged-0", suffix)
    checked = dump(*files, options=("--index-sanity-check",)).out
    assert checked.count("passed sanity check.") == len(files)
    entries = dump(*files, options=("--verify-index-only",)).out
    assert "timestamp mismatch" not in entries
    plain = dump(*files).out
    assert re.search(r"offset: \d+ position: \d+|timestamp: \d+ offset: \d+", plain)


def test_producer_snapshots_are_printed(written: Any, dump: Any) -> None:
    data_dir, _ = written
    snapshots = logs(data_dir, "logged-0", ".snapshot")
    assert re.search(r"producerId: \d+ producerEpoch: 0 ", dump(snapshots[-1]).out)


def test_committed_offsets_are_decoded(written: Any, dump: Any) -> None:
    data_dir, _ = written
    (partition,) = sorted(
        p.name
        for p in data_dir.glob("__consumer_offsets-*")
        if any(f.stat().st_size for f in p.glob("*.log"))
    )
    text = dump(*logs(data_dir, partition), options=("--offsets-decoder",)).out
    assert '"group":"readers"' in text
    assert re.search(r'"topic":"logged","partition":0.*?"offset":100', text)
    assert '"protocolType":"consumer"' in text


def test_the_metadata_log_is_decoded(written: Any, dump: Any) -> None:
    data_dir, _ = written
    files = logs(data_dir, "__cluster_metadata-0")
    text = dump(*files, options=("--cluster-metadata-decoder",)).out
    for record in ("FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "TOPIC_RECORD",
                   "PARTITION_RECORD", "CONFIG_RECORD"):  # fmt: skip
        assert f'"type":"{record}"' in text
    assert '"name":"logged"' in text
    assert '"name":"retention.ms","value":"-1"' in text
    indexes = logs(data_dir, "__cluster_metadata-0", ".index")
    checked = dump(*indexes, options=("--index-sanity-check",)).out
    assert checked.count("passed sanity check") + checked.count(" is empty.") == len(indexes)


def test_small_files_have_kafkas_form(written: Any) -> None:
    data_dir, _ = written
    meta = (data_dir / "meta.properties").read_text()
    assert re.search(r"^version=1$", meta, re.M)
    assert re.search(r"^cluster\.id=[A-Za-z0-9_-]{22}$", meta, re.M)
    assert re.search(r"^node\.id=\d+$", meta, re.M)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint",
                 "replication-offset-checkpoint"):  # fmt: skip
        lines = (data_dir / name).read_text().splitlines()
        assert lines[0] == "0"
        assert int(lines[1]) == len(lines) - 2
    recovery = (data_dir / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert "logged 0 4100" in recovery
    partition = (data_dir / "logged-0" / "partition.metadata").read_text()
    assert re.fullmatch(r"version: 0\ntopic_id: [A-Za-z0-9_-]{22}\n?", partition)
    epochs = (data_dir / "logged-0" / "leader-epoch-checkpoint").read_text()
    assert epochs == "0\n1\n0 0\n"
    assert (data_dir / ".kafka_cleanshutdown").exists()
