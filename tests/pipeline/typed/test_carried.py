"""fastavro and protobuf travel to executors that have neither, and work there."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.spark import shipping
from pipeline.spark.shipping import carry

PROGRAM = """
import io, sys
sys.path.append(sys.argv[1])
import fastavro
from google.protobuf import timestamp_pb2
schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
print(fastavro.schemaless_reader(io.BytesIO(bytes([10])), fastavro.parse_schema(schema), None))
print(timestamp_pb2.Timestamp.FromString(bytes([8, 5])).seconds)
"""


def test_a_python_with_no_packages_reads_avro_and_protobuf_with_the_carried_file(
    tmp_path: Path,
) -> None:
    added: list[str] = []
    context = SimpleNamespace(_temp_dir=str(tmp_path), addFile=added.append)
    spark = SimpleNamespace(sparkContext=context)
    carry(spark, "carried.zip", ["fastavro", "google.protobuf"])  # type: ignore[arg-type]
    carry(spark, "carried.zip", ["fastavro"])  # type: ignore[arg-type] # once a session
    assert added == [str(tmp_path / "carried.zip")]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, added[0]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["{'a': 5}", "5"]


def test_what_could_not_be_packed_is_packed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str] = []
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(_temp_dir=str(tmp_path), addFile=added.append)
    )

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(shipping, "_add", fail)
        with pytest.raises(OSError, match="No space left"):
            carry(spark, "carried.zip", ["google.protobuf"])
    carry(spark, "carried.zip", ["google.protobuf"])
    assert added == [str(tmp_path / "carried.zip")]
