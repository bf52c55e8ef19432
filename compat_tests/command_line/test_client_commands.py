"""`barnabas topic`, `produce`, `consume` and the like: what people would use kcat and Java for.

They are clients of any cluster: `--broker kafka` runs the same tests against Apache Kafka.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from testkit.brokers.nodes import RunningBroker
from testkit.clients.cli import BARNABAS, assert_one_clear_line, heed_signals, run
from testkit.ports import free_ports
from testkit.wait import eventually

Cli = Callable[..., subprocess.CompletedProcess[str]]
KEPT = ("--config", "retention.ms=-1")
"""For records of the year 1970, which the retention of seven days may remove at any moment."""


@pytest.fixture
def cli(bootstrap: str) -> Cli:
    """Runs a client command on the broker under test: `cli("topic", "list")`."""

    def call(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return run(*arguments, "--bootstrap", bootstrap, stdin=stdin)

    return call


@pytest.fixture
def ok(cli: Cli) -> Callable[..., str]:
    """The same, which must succeed and say nothing on stderr; returns what it printed."""

    def call(*arguments: str, stdin: str | None = None) -> str:
        done = cli(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return call


Ok = Callable[..., str]


def in_order(topic: str, *arguments: str) -> list[str]:
    return ["consume", topic, "--format", "json", *arguments]


def lines_of(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


# ---- topics


def test_a_topic_from_create_to_delete(ok: Ok, topic_name: str) -> None:
    create = ("topic", "create", topic_name, "--partitions", "2", "--config", "retention.ms=60000")
    assert ok(*create) == f"created topic {topic_name}\n"
    assert f"{topic_name}\t2\t1" in ok("topic", "list").splitlines()
    (found,) = json.loads(ok("topic", "describe", topic_name, "--json"))
    assert found["configs"]["retention.ms"] == "60000"
    assert [p["partition"] for p in found["partitions"]] == [0, 1]
    ok("topic", "alter", topic_name, "--partitions", "3", "--delete-config", "retention.ms")
    (found,) = json.loads(ok("topic", "describe", topic_name, "--json"))
    assert len(found["partitions"]) == 3
    assert "retention.ms" not in found["configs"]
    assert ok("topic", "delete", topic_name) == f"deleted topic {topic_name}\n"
    assert topic_name not in ok("topic", "list")


def test_mistakes_with_topics_are_one_line(cli: Cli, ok: Ok, topic_name: str) -> None:
    ok("topic", "create", topic_name)
    assert_one_clear_line(cli("topic", "create", topic_name), 1, "EXISTS", "--if-not-exists")
    assert ok("topic", "create", topic_name, "--if-not-exists") == ""
    assert_one_clear_line(cli("topic", "create", "a b"), 1, "INVALID_TOPIC")
    wrong = cli("topic", "alter", topic_name, "--config", "no.such.key=1")
    assert_one_clear_line(wrong, 1, "no.such.key")
    assert_one_clear_line(cli("topic", "alter", topic_name), 2, "--partitions")
    fewer = cli("topic", "alter", topic_name, "--partitions", "1")
    assert_one_clear_line(fewer, 1, "INVALID_PARTITIONS")
    missing = topic_name + "-missing"
    for action in (("describe",), ("delete",), ("alter", "--partitions", "2")):
        done = cli("topic", action[0], missing, *action[1:])
        assert_one_clear_line(done, 1, missing, "UNKNOWN_TOPIC", "barnabas topic list")
    assert ok("topic", "delete", missing, "--if-exists") == ""


# ---- records


def test_lines_become_records_and_lines_again(ok: Ok, topic_name: str) -> None:
    ok("topic", "create", topic_name)
    said = ok("produce", topic_name, stdin="one\ntwo\nthree")
    assert said == f"3 records to {topic_name} (partition and offset 0: 0 to 2)\n"
    assert ok("consume", topic_name) == "one\ntwo\nthree\n"
    assert ok("produce", topic_name, stdin="") == f"0 records to {topic_name}\n"


def test_keys_headers_and_files(ok: Ok, topic_name: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"k1:v:1\r\nk2:\n")
    ok("topic", "create", topic_name)
    flags = ("--key-separator", ":", "--header", "a=1", "--header", "b=x=y", "--partition", "0")
    answer = ok("produce", topic_name, "--file", str(tmp_path / "lines"), *flags, "--json")
    assert json.loads(answer) == {
        "topic": topic_name,
        "records": 2,
        "partitions": {"0": {"first_offset": 0, "last_offset": 1}},
    }
    assert ok("consume", topic_name, "--format", "key-value") == "k1\tv:1\nk2\t\n"
    assert ok("consume", topic_name, "--format", "hex") == "0:0\t6b31\t763a31\n0:1\t6b32\t\n"
    (first, _second) = lines_of(ok(*in_order(topic_name)))
    assert first["headers"] == [["a", "1"], ["b", "x=y"]]


def test_json_lines_carry_a_topic_into_another(ok: Ok, topic_name: str) -> None:
    copy = topic_name + "-copy"
    ok("topic", "create", topic_name, copy, "--partitions", "2", *KEPT)
    given: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [["h", "1"]], "partition": 1, "timestamp": 1000},
        {"key": {"base64": "/w=="}, "value": None, "headers": [], "partition": 1, "timestamp": 5},
    ]
    text = "".join(json.dumps(line) + "\n" for line in given)
    ok("produce", topic_name, "--format", "json", stdin=text)
    printed = ok(*in_order(topic_name))
    assert [{k: line[k] for k in given[0]} for line in lines_of(printed)] == given
    ok("produce", copy, "--format", "json", stdin=printed)
    copied = lines_of(ok(*in_order(copy)))
    assert [line | {"topic": topic_name} for line in copied] == lines_of(printed)


def test_a_record_for_a_partition_that_is_not_there_names_the_way_out(
    cli: Cli, ok: Ok, topic_name: str
) -> None:
    ok("topic", "create", topic_name)
    done = cli("produce", topic_name, "--format", "json", stdin='{"value": "v", "partition": 2}\n')
    assert_one_clear_line(done, 1, "no partition 2, only 0 to 0", "--partitions 3")


def test_from_to_count_filter_and_partition_choose(ok: Ok, topic_name: str) -> None:
    ok("topic", "create", topic_name, "--partitions", "2", *KEPT)
    lines = [{"value": f"v{i}", "partition": 0, "timestamp": 1000 * i} for i in range(10)]
    lines.append({"value": "other", "partition": 1, "timestamp": 0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    ok("produce", topic_name, "--format", "json", stdin=text)

    def values(*flags: str) -> list[str]:
        return ok("consume", topic_name, *flags).split()

    zero = ("--partition", "0")
    assert values("--partition", "1") == ["other"]
    assert values(*zero, "--from", "8") == ["v8", "v9"]
    assert values(*zero, "--from", "-1") == ["v9"]
    assert values(*zero, "--from", "end") == []
    assert values(*zero, "--from", "2", "--to", "4") == ["v2", "v3"]
    assert values(*zero, "--from", "1970-01-01T00:00:06.5Z", "--to", "-1") == ["v7", "v8"]
    assert values("--count", "1", *zero) == ["v0"]
    assert values("--filter", "the") == ["other"]


def test_a_group_goes_on_where_it_stood(ok: Ok, topic_name: str, group_name: str) -> None:
    ok("topic", "create", topic_name)
    ok("produce", topic_name, stdin="a\nb\nc\n")
    group = ("--group", group_name)
    assert ok("consume", topic_name, *group, "--count", "2") == "a\nb\n"
    assert ok("consume", topic_name, *group) == "c\n"
    assert ok("consume", topic_name, *group) == ""


def test_records_of_an_aborted_transaction_need_not_be_read(
    ok: Ok, bootstrap: str, topic_name: str
) -> None:
    ok("topic", "create", topic_name)
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic_name)
    ) as producer:
        producer.init_transactions()
        for value, end in (
            (b"kept", producer.commit_transaction),
            (b"dropped", producer.abort_transaction),
        ):
            producer.begin_transaction()
            producer.send(topic_name, value).get(30)
            end()
    assert ok("consume", topic_name) == "kept\ndropped\n"
    assert ok("consume", topic_name, "--isolation-level", "read_committed") == "kept\n"


def test_follow_prints_what_comes_and_ctrl_c_ends_it_quietly(
    ok: Ok, bootstrap: str, topic_name: str
) -> None:
    ok("topic", "create", topic_name)
    ok("produce", topic_name, stdin="before\n")
    process = subprocess.Popen(
        [*BARNABAS, "consume", topic_name, "--follow", "--bootstrap", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "before\n"
    ok("produce", topic_name, stdin="after\n")
    assert process.stdout.readline() == "after\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_member_that_is_ended_leaves_its_group(
    ok: Ok, bootstrap: str, topic_name: str, group_name: str
) -> None:
    ok("produce", topic_name, stdin="one\n")
    line = [*BARNABAS, "consume", topic_name, "--bootstrap", bootstrap]
    with subprocess.Popen(
        [*line, "--follow", "--group", group_name], stdout=subprocess.PIPE, text=True
    ) as member:
        assert member.stdout is not None
        assert member.stdout.readline() == "one\n"
        member.terminate()
        assert member.wait(30) == 128 + signal.SIGTERM
    described = json.loads(ok("group", "describe", group_name, "--json"))
    assert (described["state"], described["members"]) == ("Empty", [])


def test_a_producer_that_is_ended_has_sent_what_it_had_read(
    ok: Ok, bootstrap: str, topic_name: str
) -> None:
    ok("topic", "create", topic_name)
    line = [*BARNABAS, "produce", topic_name, "--bootstrap", bootstrap]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        run.stdin.write("one\nhalf a line")
        run.stdin.flush()
        eventually(lambda: ok("consume", topic_name) == "one\n")
        run.terminate()
        assert run.wait(30) == 128 + signal.SIGTERM
    assert ok("consume", topic_name) == "one\n"


def test_a_closed_pipe_is_no_error(ok: Ok, bootstrap: str, topic_name: str) -> None:
    ok("topic", "create", topic_name)
    ok("produce", topic_name, stdin="a line that fills the pipe\n" * 20_000)
    process = subprocess.Popen(
        [*BARNABAS, "consume", topic_name, "--bootstrap", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"a line that fills the pipe\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 0


def test_mistakes_with_records_are_one_line(cli: Cli, ok: Ok, topic_name: str) -> None:
    ok("topic", "create", topic_name, "--config", "max.message.bytes=1000")
    assert_one_clear_line(cli("consume", topic_name + "-no"), 1, "no topic", "topic list")
    assert_one_clear_line(cli("consume", topic_name, "--partition", "7"), 1, "0 to 0")
    done = cli("produce", topic_name, "--key-separator", ":", stdin="a:b\nnone\n")
    assert_one_clear_line(done, 1, "line 2", "':'")
    assert ok("consume", topic_name) == "b\n"
    done = cli("produce", topic_name, "--format", "json", stdin='{"vlaue": 1}\n')
    assert_one_clear_line(done, 1, "line 1", "vlaue")
    done = cli("produce", topic_name, stdin="x" * 5000 + "\n")
    assert_one_clear_line(done, 1, "0 records were written")
    assert_one_clear_line(cli("produce", topic_name, "--file", "/no/such"), 1, "/no/such")
    assert_one_clear_line(cli("produce", topic_name, "--header", "a", stdin=""), 2, "KEY=VALUE")
    assert_one_clear_line(cli("consume", topic_name, "--group", "g", "--from", "3"), 2, "--group")


# ---- groups and configs


def test_a_groups_lag_offsets_and_end(ok: Ok, cli: Cli, topic_name: str, group_name: str) -> None:
    ok("topic", "create", topic_name)
    ok("produce", topic_name, stdin="a\nb\nc\n")
    ok("consume", topic_name, "--group", group_name, "--count", "2")
    groups = [line.split("\t")[0] for line in ok("group", "list").splitlines()]
    assert group_name in groups
    assert ok("group", "lag", group_name) == f"{topic_name}\t0\t2\t3\t1\n"
    described = json.loads(ok("group", "describe", group_name, "--json"))
    assert (described["state"], described["members"]) == ("Empty", [])
    assert [row["lag"] for row in described["lag"]] == [1]

    reset = ("group", "reset-offsets", group_name)
    assert ok(*reset, "--to", "beginning", "--dry-run") == f"{topic_name}\t0\t2\t0\n"
    assert ok(*reset, "--to", "-1") == f"{topic_name}\t0\t2\t2\n"
    assert ok(*reset, "--to", "1", "--topic", f"{topic_name}:0") == f"{topic_name}\t0\t2\t1\n"
    assert ok(*reset, "--to", "2100-01-01") == f"{topic_name}\t0\t1\t3\n"
    assert ok("consume", topic_name, "--group", group_name) == ""
    ok(*reset, "--to", "1")
    assert ok("consume", topic_name, "--group", group_name) == "b\nc\n"

    done = cli(*reset, "--to", "1", "--topic", f"{topic_name}:7")
    assert_one_clear_line(done, 2, "0 to 0")
    assert ok("group", "delete", group_name) == f"deleted group {group_name}\n"
    for action in ("describe", "lag", "delete"):
        assert_one_clear_line(cli("group", action, group_name), 1, "no group", "group list")


def test_a_group_with_a_member_is_described_and_not_moved(
    ok: Ok, cli: Cli, bootstrap: str, topic_name: str, group_name: str
) -> None:
    ok("topic", "create", topic_name)
    ok("produce", topic_name, stdin="a\n")
    command = ["consume", topic_name, "--group", group_name, "--follow", "--bootstrap", bootstrap]
    member = subprocess.Popen(
        [*BARNABAS, *command], stdout=subprocess.PIPE, text=True, preexec_fn=heed_signals
    )
    try:
        assert member.stdout is not None
        assert member.stdout.readline() == "a\n"
        described = json.loads(ok("group", "describe", group_name, "--json"))
        assert described["state"] == "Stable"
        assert [one["partitions"] for one in described["members"]] == [[f"{topic_name}:0"]]
        done = cli("group", "reset-offsets", group_name, "--to", "beginning", "--topic", topic_name)
        assert_one_clear_line(done, 1, group_name, "stop its members")
        assert_one_clear_line(cli("group", "delete", group_name), 1, "stop its members")
        other = cli(*command[:4])  # one of the two has no partition; both have nothing to print
        assert (other.returncode, other.stdout) == (0, "")
    finally:
        member.send_signal(signal.SIGINT)
        member.communicate(timeout=30)


def test_configs_of_topics_and_brokers(ok: Ok, cli: Cli, topic_name: str) -> None:
    ok("topic", "create", topic_name)
    assert ok("config", "get", "topic", topic_name) == ""
    ok("config", "set", "topic", topic_name, "retention.ms=5", "cleanup.policy=compact")
    assert ok("config", "get", "topic", topic_name).splitlines() == [
        "cleanup.policy\tcompact\tdynamic_topic_config",
        "retention.ms\t5\tdynamic_topic_config",
    ]
    ok("config", "set", "topic", topic_name, "--delete", "retention.ms")
    answer = ok("config", "get", "topic", topic_name, "retention.ms", "--json")
    assert json.loads(answer)["configs"][0]["value"] == "604800000"
    assert "max.message.bytes\t" in ok("config", "get", "topic", topic_name, "--all")

    ok("config", "set", "broker", "1", "log.cleaner.io.buffer.size=600000")
    assert "\t600000\t" in ok("config", "get", "broker", "1")
    ok("config", "set", "broker", "1", "--delete", "log.cleaner.io.buffer.size")

    assert_one_clear_line(cli("config", "get", "broker", "77"), 1, "no broker '77'")

    ok("config", "set", "group", "later", "share.auto.offset.reset=earliest")
    assert ok("config", "get", "group", "later") == (
        "share.auto.offset.reset\tearliest\tdynamic_group_config\n"
    )
    wrong = cli("config", "set", "group", "later", "share.auto.offset.reset=best")
    assert_one_clear_line(wrong, 1, "group 'later'", "share.auto.offset.reset", "best")
    ok("config", "set", "group", "later", "--delete", "share.auto.offset.reset")
    assert ok("config", "get", "group", "later") == ""
    assert_one_clear_line(cli("config", "get", "topic", "none-such"), 1, "UNKNOWN_TOPIC")
    done = cli("config", "set", "topic", topic_name, "retention.ms=soon")
    assert_one_clear_line(done, 1, "retention.ms")
    assert_one_clear_line(cli("config", "set", "topic", topic_name), 2, "--delete")
    assert_one_clear_line(cli("config", "get", "topic", topic_name, "no.such"), 1, "no.such")


# ---- the cluster that is not there


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("produce", "t"), ("consume", "t")], ids=lambda c: str(c[0])
)
def test_nobody_there_is_one_line_with_the_next_step(command: tuple[str, ...]) -> None:
    (port,) = free_ports(1)
    done = run(*command, "--bootstrap", f"127.0.0.1:{port}", stdin="")
    assert_one_clear_line(done, 1, f"127.0.0.1:{port}", "refused", "barnabas start")
    assert_one_clear_line(run(*command, "--bootstrap", "nonsense", stdin=""), 2, "--bootstrap")


def test_all_addresses_are_tried(bootstrap: str) -> None:
    (port,) = free_ports(1)
    done = run("topic", "list", "--json", "--bootstrap", f"127.0.0.1:{port},{bootstrap}")
    assert (done.returncode, done.stderr) == (0, "")
    assert isinstance(json.loads(done.stdout), list)


def test_the_client_library_is_not_imported_to_start_or_to_help() -> None:
    program = (
        "import sys, barnabas.__main__ as m; sys.argv = ['barnabas', 'version']; m.main();"
        "assert 'kafka' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    version = run("--version")
    assert version.returncode == 0
    assert version.stdout == run("version").stdout


def test_the_doctor_finds_nothing_wrong_with_a_broker_that_is_well(ok: Ok) -> None:
    lines = ok("doctor").splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert "is advertised as 127.0.0.1:" in lines[1]
    assert "the quorum is led by node 1" in lines[-1]


def test_the_doctor_names_an_address_that_clients_cannot_reach(
    fresh_broker: Callable[..., RunningBroker],
) -> None:
    (port, nobody) = free_ports(2)
    broker = fresh_broker({"advertised.listeners": f"PLAINTEXT://no-such-host.invalid:{port}"})
    done = run("doctor", "--bootstrap", f"127.0.0.1:{nobody},{broker.bootstrap_servers}")
    assert (done.returncode, done.stderr) == (1, "")
    refused, answers, advertised = done.stdout.splitlines()
    assert refused.startswith(f"WRONG  bootstrap address 127.0.0.1:{nobody}: Connection refused")
    assert answers.startswith(f"ok     bootstrap address {broker.bootstrap_servers} answers")
    assert advertised.startswith("WRONG  node 1 is advertised as no-such-host.invalid")
    assert "advertised.listeners" in advertised


def test_the_doctor_knows_what_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = run("doctor", "--bootstrap", address, "--timeout", "1", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    (finding,) = json.loads(done.stdout)
    assert "does not answer as a Kafka broker" in finding["text"]
