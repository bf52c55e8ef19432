"""The data source's options and filters, and what it spares a worker."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import zipimport
from pathlib import Path
from typing import Any

import pytest

from pipeline.segments.plan import PlanError, Wanted
from pipeline.segments.source import narrow, parse_options

ZIPS = """\
import importlib, os, sys, zipfile, zipimport
sys.path.insert(0, sys.argv[1])
from pipeline.segments import source

def write(*names):
    with zipfile.ZipFile("modules.zip", "w") as made:
        for name in names:
            made.writestr(name + ".py", "")

write("one")
sys.path.insert(0, os.path.abspath("modules.zip"))
import one
source.spare_worker()
spared = zipimport.zipimporter.invalidate_caches
importlib.reload(source).spare_worker()
assert zipimport.zipimporter.invalidate_caches is spared, "the next task's copy does it again"
importlib.invalidate_caches()
before = zipimport._zip_directory_cache[sys.path[0]]
importlib.invalidate_caches()
assert zipimport._zip_directory_cache[sys.path[0]] is before, "read again though it is as it was"
write("one", "two")
importlib.invalidate_caches()
import two
os.unlink("modules.zip")
importlib.invalidate_caches()
"""


@pytest.mark.skipif(
    hasattr(zipimport.zipimporter, "_get_files"), reason="this Python reads lazily itself"
)
def test_a_spared_worker_reads_a_zip_again_when_it_changed_and_only_then(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", ZIPS, str(root)], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_filters_of_pyspark_narrow_the_plan() -> None:
    def of(kind: str, column: str, value: Any) -> Any:
        return type(kind, (), {"attribute": (column,), "value": value})()

    wanted = Wanted("t", from_offsets={0: 50})
    wanted = narrow(wanted, of("In", "partition", (0, 2)))
    wanted = narrow(wanted, of("EqualTo", "partition", 2))
    wanted = narrow(wanted, of("GreaterThan", "offset", 9))
    wanted = narrow(wanted, of("LessThanOrEqual", "offset", 99))
    assert [wanted.has(partition) for partition in range(3)] == [False, False, True]
    assert wanted.from_offsets == {-1: 10, 0: 50}
    assert wanted.to_offsets == {-1: 100}
    moment = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    ms = int(moment.timestamp() * 1000)
    wanted = narrow(wanted, of("GreaterThanOrEqual", "timestamp", moment))
    wanted = narrow(wanted, of("LessThan", "timestamp", moment))
    assert (wanted.since_ms, wanted.until_ms) == (ms, ms + 1)
    assert narrow(wanted, of("StringContains", "value", "x")) == wanted


def test_unknown_options_are_refused() -> None:
    with pytest.raises(PlanError, match="unknown option 'subscribe'"):
        parse_options({"path": "/x", "topic": "t", "subscribe": "t"})
    with pytest.raises(PlanError, match="needs the option 'topic'"):
        parse_options({"path": "/x"})


@pytest.mark.parametrize("option", ["since", "until", "partitions"])
def test_an_option_that_is_no_number_is_named(option: str) -> None:
    with pytest.raises(PlanError, match=f"option {option} has 'x'; expected a whole number"):
        parse_options({"path": "/x", "topic": "t", option: "x"})


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    _, wanted = parse_options({"path": "/x", "topic": "b, a,b"})
    assert [one.topic for one in wanted] == ["b", "a"]


def test_commits_that_were_decided_are_those_of_their_topic() -> None:
    prepared = {0: [1, 3], 1: [2]}
    told = {"path": "/logs", "topic": "t,u", "preparedcommits": json.dumps({"t": prepared})}
    assert [one.prepared for one in parse_options(told)[1]] == [prepared, {}]
