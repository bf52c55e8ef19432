"""`barnabas.Broker` and the pytest fixtures, as a test author uses them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

import barnabas
from testkit.ports import free_ports
from testkit.wait import eventually


def is_listening(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def produce(broker: barnabas.Broker, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for value in values:
        producer.send("orders", value).get(10)
    producer.close()


def consume(broker: barnabas.Broker, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    values = [next(consumer).value for _ in range(count)]
    consumer.close()
    return values


def test_a_context_manager_gives_a_fresh_broker_and_leaves_nothing() -> None:
    with barnabas.Broker(config={"num.partitions": 3}) as broker:
        assert is_listening(broker.bootstrap_servers)
        assert broker.pid is not None
        directory = broker.data_dir
        assert (directory / "meta.properties").exists()
        produce(broker, b"one")
        assert consume(broker, 1) == [b"one"]
        assert len(list(directory.glob("orders-*"))) == 3
        address = broker.bootstrap_servers
    assert broker.pid is None
    assert not is_listening(address)
    assert not directory.exists()
    assert "broker stopped" in broker.log_text


def test_restart_keeps_the_port_and_the_data() -> None:
    with barnabas.Broker() as broker:
        produce(broker, b"one")
        address, pid = broker.bootstrap_servers, broker.pid
        broker.restart()
        assert broker.bootstrap_servers == address
        assert broker.pid != pid
        assert consume(broker, 1) == [b"one"]


def test_kill_is_a_crash_and_what_was_acknowledged_survives_it(tmp_path: Path) -> None:
    broker = barnabas.Broker(data_dir=tmp_path / "data").start()
    produce(broker, b"one", b"two")
    broker.kill()
    assert broker.pid is None
    broker.start()
    assert consume(broker, 2) == [b"one", b"two"]
    broker.stop()
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_broker_that_failed_by_itself_is_told_of_when_it_is_stopped() -> None:
    """A test might pass without its broker."""
    broker = barnabas.Broker().start()
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGABRT)
    eventually(lambda: broker.pid is None)
    with pytest.raises(barnabas.BrokerError, match="ended by itself with exit code -6; its log"):
        broker.stop()
    assert not broker.data_dir.exists()


def test_a_failed_start_says_why() -> None:
    with pytest.raises(barnabas.BrokerError, match=r"num\.partitions.*at least 1"):
        barnabas.Broker(config={"num.partitions": 0}).start()
    with barnabas.Broker() as first, pytest.raises(barnabas.BrokerError, match="in use"):
        barnabas.Broker(listen=first.bootstrap_servers).start()


def test_a_mistake_in_the_configuration_is_one_line() -> None:
    with pytest.raises(barnabas.BrokerError) as wrong:
        barnabas.Broker(config={"foo": 1}).start()
    assert str(wrong.value) == "the broker did not start: config foo = '1': unknown key"


def test_several_listeners_come_from_the_config() -> None:
    ports = free_ports(2)
    listeners = f"INSIDE://127.0.0.1:{ports[0]},OUTSIDE://127.0.0.1:{ports[1]}"
    config = {
        "listeners": listeners,
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    with barnabas.Broker(config=config) as broker:
        for _run in range(2):
            assert broker.bootstrap_servers == f"127.0.0.1:{ports[0]}"
            assert all(is_listening(f"127.0.0.1:{port}") for port in ports)
            broker.restart()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"config": {"listeners": "PLAINTEXT://127.0.0.1:0"}}, "expected ports"),
        ({"config": {"listeners": "PLAINTEXT://:9"}, "listen": "127.0.0.1:0"}, "one of them"),
    ],
)
def test_what_an_argument_says_is_not_overwritten(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        barnabas.Broker(**arguments)


def test_async_with_does_not_stop_the_loop() -> None:
    async def use() -> tuple[int, bool]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        async with barnabas.Broker() as broker:
            at_work = is_listening(broker.bootstrap_servers)
        ticker.cancel()
        return ticks, at_work

    ticks, at_work = asyncio.run(use())
    assert at_work
    assert ticks > 5


def test_a_broker_dies_with_its_parent(tmp_path: Path) -> None:
    program = "import barnabas, time\nb = barnabas.Broker().start()\n"
    program += "print(b.bootstrap_servers, b.pid, flush=True)\ntime.sleep(60)\n"
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # who is killed removes nothing
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env
    )
    assert parent.stdout is not None
    address, pid = parent.stdout.readline().split()
    assert is_listening(address)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not is_listening(address), timeout_s=10)
    eventually(lambda: not _is_running(int(pid)), timeout_s=10)
    assert list(tmp_path.iterdir()) == []  # and the broker removes what its parent cannot any more


_FORKED = """
import barnabas, os, sys, time
with barnabas.Broker() as broker:
    child = os.fork()
    if child == 0:
        sys.exit()  # through the end of the `with`
    os.waitpid(child, 0)
    broker.restart()  # on its data
broker = barnabas.Broker().start()
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
print(broker.bootstrap_servers, flush=True)
time.sleep(60)
"""


def test_a_process_that_was_forked_neither_ends_a_broker_nor_keeps_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert is_listening(address)
        parent.kill()
        parent.wait()
        eventually(lambda: not is_listening(address), timeout_s=10)
        eventually(lambda: not list(tmp_path.iterdir()), timeout_s=10)
        assert parent.stdin is not None
        parent.stdin.close()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)
    except ProcessLookupError:
        return False
    # An orphan that ended stays a zombie until somebody reaps it.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and ") Z " in stat.read_text())


def run_pytest(directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            *flags,
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_pytest_fixtures_work_with_nothing_imported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def barnabas_config():\n"
        "    return {'num.partitions': 2}\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "seen = set()\n"
        "def check(broker):\n"
        "    seen.add(broker.bootstrap_servers)\n"
        "    assert broker.pid\n"
        "def test_fresh_1(barnabas_broker): check(barnabas_broker)\n"
        "def test_fresh_2(barnabas_broker): check(barnabas_broker)\n"
        "def test_shared_1(barnabas_shared_broker): check(barnabas_shared_broker)\n"
        "def test_shared_2(barnabas_shared_broker): check(barnabas_shared_broker)\n"
        "def test_zz_three_brokers(): assert len(seen) == 3\n"
    )
    done = run_pytest(tmp_path)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_a_test_that_fails_shows_what_its_broker_wrote_and_its_mark_configures_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "@pytest.mark.barnabas_config({'num.partitions': 7})\n"
        "class TestMarked:\n"
        "    @pytest.mark.barnabas_config({'log.retention.hours': 3})\n"
        "    def test_fails(self, barnabas_broker):\n"
        "        from kafka import KafkaProducer\n"
        "        KafkaProducer(bootstrap_servers=barnabas_broker.bootstrap_servers).close()\n"
        "        assert 0\n"
        "    @pytest.mark.barnabas_config({'num.partitions': 'x'})\n"
        "    def test_mistaken(self, barnabas_broker): pass\n"
        "    def test_shared(self, barnabas_shared_broker): pass\n"
    )
    done = run_pytest(tmp_path, "--strict-markers")
    assert done.returncode == 1
    assert "log of barnabas_broker" in done.stdout
    assert "last requests of barnabas_broker" in done.stdout
    assert "ApiVersions v4 client='kafka-python-producer-1'" in done.stdout
    assert "broker started" in done.stdout
    mistake = "the broker did not start: config num.partitions = 'x': expected a whole number (INT)"
    assert done.stdout.splitlines().count(mistake) == 1  # a line of its own, once
    assert "barnabas_config does not change barnabas_shared_broker" in done.stdout
    assert "pytest_plugin.py" not in done.stdout
