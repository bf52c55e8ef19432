"""The `barnabas` command as a whole: what it loads, how it ends, what it leaves behind."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.__main__ import _extend
from barnabas.client_commands.completion import _words
from barnabas.fresh import random_uuid
from server.commands import demo
from server.commands.main import _parser, main, seconds
from testkit.wait import eventually

BARNABAS = [sys.executable, "-m", "barnabas"]


def test_a_brokers_start_loads_no_code_of_other_commands() -> None:
    """Every start would wait for it: a fifth of its processor time."""
    command = [sys.executable, "-X", "importtime", "-m", "barnabas", "start", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "usage: barnabas start" in run.stdout
    loaded = [line.rpartition("|")[2].strip() for line in run.stderr.splitlines()]
    assert "server.commands.main" in loaded
    others = ("barnabas.client", "barnabas.broker", "barnabas.process", "pipeline", "subprocess")
    assert not [name for name in loaded if name.startswith(others)]


def barnabas(
    *arguments: str, stdout: int = subprocess.PIPE, tmpdir: Path | None = None
) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    if tmpdir is not None:
        environment["TMPDIR"] = str(tmpdir)
    return subprocess.Popen(
        [*BARNABAS, *arguments],
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("start --nope", "unrecognized arguments: --nope; see barnabas start --help"),
        ("topic list --x --y", "unrecognized arguments: --x --y; see barnabas topic list --help"),
        ("--nope start", "unrecognized arguments: --nope; see barnabas --help"),
        ("cluster start --nodes x", "argument --nodes: 'x': expected a number from 1 to 99;"
         " see barnabas cluster start --help"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_where_to_read_on(line: str, complaint: str) -> None:
    with barnabas(*line.split()) as process:
        assert process.communicate(timeout=60) == ("", f"barnabas: {complaint}\n")
    assert process.returncode == 2


def test_every_command_takes_the_flag_that_kafkas_own_tools_have() -> None:
    flags = {path: words for path, words in _words(_parser(_extend), "") if "--bootstrap" in words}
    assert len(flags) > 20
    assert not [path for path, words in flags.items() if "--bootstrap-server" not in words]
    arguments = _parser(_extend).parse_args(["topic", "list", "--bootstrap-server", "a:1"])
    assert arguments.bootstrap == "a:1"


def test_a_reader_that_has_gone_is_no_error() -> None:
    """Also of an answer so short that it is written when all is done."""
    reader, writer = os.pipe()
    os.close(reader)
    with barnabas("random-uuid", stdout=writer) as process:
        os.close(writer)
        assert process.communicate(timeout=60) == (None, "")
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full by its nature")
def test_an_output_that_is_full_is_one_line() -> None:
    with open("/dev/full", "wb") as full, barnabas("random-uuid", stdout=full.fileno()) as process:
        _out, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaint == "barnabas: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("why", [errno.EDQUOT, errno.EFBIG])
def test_an_output_for_which_there_is_no_room_by_a_rule_is_one_line(
    why: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(why, os.strerror(why))

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["random-uuid"]) == 1
    said = f"barnabas: standard output cannot be written: {os.strerror(why)}\n"
    assert capsys.readouterr().err == said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full by its nature")
def test_a_broker_whose_output_is_full_serves_and_stops_cleanly(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    with (
        open("/dev/full", "wb") as full,
        barnabas("start", *flags, stdout=full.fileno()) as broker,
    ):
        assert broker.stderr is not None
        log = ""
        while "standard output cannot be written" not in log:
            line = broker.stderr.readline()
            assert line, log
            log += line
        broker.terminate()
        _out, rest = broker.communicate(timeout=60)
    assert "barnabas ready: 127.0.0.1:" in log
    assert (broker.returncode, "broker stopped" in rest) == (0, True), rest


def test_a_disk_that_is_full_when_the_metadata_log_begins_is_one_line(tmp_path: Path) -> None:
    """Of 12 to 16 KiB the files before it leave nothing."""
    program = (
        "import errno, sys, types\n"
        "from storage import files; from storage.segments import segment\n"
        "def full(*_): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "segment.files = types.SimpleNamespace(**{**vars(files), 'pwritev': full})\n"
        "from server.commands.main import main; sys.exit(main(sys.argv[1:]))"
    )
    flags = ("start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    run = subprocess.run([sys.executable, "-c", program, *flags], capture_output=True, text=True,
                         timeout=60, stdin=subprocess.DEVNULL)  # fmt: skip
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    said = run.stderr.splitlines()[-1]
    assert said.startswith("barnabas: cannot start: No space left on device; free some space")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_was_closed_gives_its_number_to_no_file_of_ours(
    closed: str, tmp_path: Path
) -> None:
    """A log of records, or a socket, at 1 or 2 would be given what is printed."""
    numbers = tmp_path / "numbers"
    program = (
        "import os; from pathlib import Path; from barnabas.__main__ import main; main();"
        " same = os.path.samestat;"
        " null = [same(os.fstat(n), os.stat(os.devnull)) for n in (0, 1, 2)];"
        f" Path({str(numbers)!r}).write_text(repr((null, os.open('/', os.O_RDONLY) > 2)))"
    )
    line = f"exec '{sys.executable}' -c \"$0\" produce --file {tmp_path}/none t {closed}"
    subprocess.run(["bash", "-c", line, program], check=True, timeout=60, capture_output=True,
                   stdin=subprocess.PIPE)  # fmt: skip
    null = [mark in closed for mark in ("<&-", ">&-", "2>&-")]
    if closed == "2>&-":
        null[1] = False
    assert numbers.read_text() == repr((null, True))


def test_what_the_outputs_encoding_lacks_is_escaped_and_json_stays_json() -> None:
    program = (
        "from server.commands import main, outcomes;"
        "main._prepare_streams(); print('\\u00e9\\udcff'); outcomes.print_json('\\u00e9')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         timeout=60, env=environment)  # fmt: skip
    assert run.stdout == '\\xe9\\udcff\n"\\u00e9"\n', run.stderr


def test_a_demo_that_is_ended_as_it_begins_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_config: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "Node", ended)
    with pytest.raises(SystemExit):
        demo.run_demo(1)
    assert not list(tmp_path.iterdir())


def test_a_timeout_that_clients_would_take_for_none_is_refused() -> None:
    """They count in milliseconds; a socket's timeout of 0 is for ever."""
    assert seconds("0.001") == 0.001
    for wrong in ("1e-9", "0", "-1", "nan", "inf", "86401"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected seconds, 0\.001 to 86400"):
            seconds(wrong)


def test_completion_knows_the_flags_of_start_that_are_added_to_it() -> None:
    run = subprocess.run([*BARNABAS, "completion", "bash"], capture_output=True, text=True,
                         timeout=60, check=True)  # fmt: skip
    (start,) = (line for line in run.stdout.splitlines() if line.strip().startswith('" start")'))
    assert "--secure" in start
    assert "--data-dir" in start


def test_a_node_whose_starter_dies_during_the_start_leaves_no_directory(tmp_path: Path) -> None:
    """It waits for its controllers, as nodes of a cluster do; its standard input has ended."""
    directory = tmp_path / "scratch"
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\ncontroller.quorum.voters=2@127.0.0.1:1\n"
        f"log.dirs={directory / 'data'}\n"
    )
    with barnabas("format", "--cluster-id", random_uuid(), "--config", str(config)) as run:
        _out, complaint = run.communicate(timeout=60)
    assert (run.returncode, complaint) == (0, "")
    flags = ("--stop-on-stdin-eof", "--then-remove", str(directory))
    with barnabas("start", "--config", str(config), *flags) as node:
        ready, log = node.communicate(timeout=60)
    assert (node.returncode, ready) == (0, ""), log
    assert "reason=standard input ended" in log
    assert not directory.exists()


_ENDED_AS_IT_MAKES_ITS_DIRECTORY = """
import os, signal, tempfile
from server.commands.main import main

make = tempfile.mkdtemp

def made(*arguments, **words):
    path = make(*arguments, **words)
    os.kill(os.getpid(), signal.SIGTERM)
    return path

tempfile.mkdtemp = made
raise SystemExit(main(["start", "--ephemeral", "--listen", "127.0.0.1:0"]))
"""


def test_an_ephemeral_broker_that_is_ended_as_it_begins_leaves_no_directory(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _ENDED_AS_IT_MAKES_ITS_DIRECTORY],
                         capture_output=True, text=True, timeout=60,
                         env=os.environ | {"TMPDIR": str(tmp_path)})  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.iterdir())


_STOPPED_BY_ANOTHER_THREAD = """
import signal, threading
from server.commands.main import _StopRequest

stop = _StopRequest()
stop.watch_signals()
told = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
threading.Timer(0.5, told.start).start()  # when the main thread waits, or it is no test
stop.wait()
print(stop.reason)
"""


def test_a_signal_that_the_system_gives_another_thread_stops_a_broker() -> None:
    """As it does when the process was paused at the time."""
    run = subprocess.run([sys.executable, "-c", _STOPPED_BY_ANOTHER_THREAD],
                         capture_output=True, text=True, timeout=20)  # fmt: skip
    assert run.stdout == "SIGTERM\n", run.stderr


_KILLED_WHILE_IT_FORMATS = """
import os, signal, sys
import barnabas
from barnabas.process import Formatting

def killed(self):
    self._run.stdin.write(self._input)
    os.kill(WHOM, signal.SIGKILL)

Formatting.wait = killed
users = {"alice": "alice-secret"}
{"broker": barnabas.Broker, "cluster": barnabas.Cluster}[sys.argv[1]](
    security="sasl_ssl", users=users).start()
"""


@pytest.mark.parametrize("whom", ["starter", "its process group"])
@pytest.mark.parametrize("kind", ["broker", "cluster"])
def test_a_starter_that_dies_while_nodes_are_formatted_leaves_no_directory(
    kind: str, whom: str, tmp_path: Path
) -> None:
    """Passwords stand in it. Who ends a test by its group, as a CI does, ends no formatting."""
    process = "os.getpid()" if whom == "starter" else "0"
    program = _KILLED_WHILE_IT_FORMATS.replace("WHOM", process)
    starter = subprocess.run(
        [sys.executable, "-c", program, kind], start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=60, check=False,
    )  # fmt: skip
    assert starter.returncode == -signal.SIGKILL
    eventually(lambda: not list(tmp_path.iterdir()), timeout_s=60, what="the directory's removal")


def test_a_starter_that_lives_keeps_its_directory(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={tmp_path / 'data'}\n")
    line = ("format", "--cluster-id", random_uuid(), "--config", str(config))
    with barnabas(*line, "--starter", str(os.getpid()), "--then-remove", str(tmp_path)) as run:
        _out, complaint = run.communicate(timeout=60)
    assert (run.returncode, complaint) == (0, "")
    assert (tmp_path / "data" / "meta.properties").exists()


def test_an_ipv6_address_is_told_as_every_client_takes_it() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with barnabas("start", "--listen", "[::1]:0", "--ephemeral") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("barnabas ready: [::1]:")
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_property_that_is_each_nodes_own_is_a_wrong_value(tmp_path: Path) -> None:
    with barnabas(
        "cluster", "start", "--data-dir", str(tmp_path / "c"), "--set", "node.id=7"
    ) as process:
        _out, complaint = process.communicate(timeout=60)
    assert process.returncode == 2
    assert complaint.startswith("barnabas: config node.id: a cluster sets this")
    assert len(complaint.splitlines()) == 1


def test_a_demo_that_is_terminated_leaves_no_directory(tmp_path: Path) -> None:
    with barnabas("demo", "--records", "1000", tmpdir=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("broker    listens on")
        assert list(tmp_path.iterdir())
        # It came when it was printed, not with 170 others once a pipe's buffer was full.
        assert sum(log.stat().st_size for log in tmp_path.glob("*/hello-0/*.log")) < 4_000
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
