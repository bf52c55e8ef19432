"""`barnabas completion`, in the shells that it is for."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testkit.clients.cli import run
from testkit.require import require_command

COMPLETED = {
    "barnabas top": "topic",
    "barnabas topic cr": "create",
    "barnabas topic create name --part": "--partitions",
    "barnabas config get bro": "broker",
    "barnabas acl add alice alter_c": "alter_configs",
    "barnabas user set --password-f": "--password-file",
}


@pytest.mark.parametrize("typed", COMPLETED)
def test_bash_completes_commands_and_flags(typed: str) -> None:
    script = run("completion", "bash").stdout
    probe = f"{script}COMP_WORDS=({typed}); COMP_CWORD={typed.count(' ')}; _barnabas\n"
    done = subprocess.run(
        ["bash", "-c", probe + 'echo "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (COMPLETED[typed] + "\n", "")


def test_zsh_completes_commands_and_flags(tmp_path: Path) -> None:
    """At its prompt, where alone it completes."""
    (tmp_path / "script").write_text(run("completion", "zsh").stdout)
    (tmp_path / ".zshrc").write_text(f'PS1="> "; source {tmp_path}/script; echo "be""gins"\n')
    with zsh(tmp_path) as terminal:
        read_until(terminal, "begins")
        for typed, expected in COMPLETED.items():
            os.write(terminal, f"{typed}\t".encode())
            read_until(terminal, f"{typed.rpartition(' ')[0]} {expected} ")
            os.write(terminal, b"\x15")  # the line is taken back


@contextmanager
def zsh(home: Path) -> Iterator[int]:
    """An interactive one that has nothing of this machine's; its terminal."""
    command = require_command("zsh", "Debian: apt-get install zsh")
    child, terminal = pty.fork()
    if child == 0:
        settings = {"PATH": os.environ["PATH"], "TERM": "dumb", "ZDOTDIR": str(home)}
        os.execve(command, ["zsh", "-d", "-i"], {**settings, "HOME": str(home)})
    try:
        yield terminal
    finally:
        os.close(terminal)  # which ends it
        os.waitpid(child, 0)


def read_until(terminal: int, expected: str, patience_s: float = 30) -> None:
    shown, ends = "", time.monotonic() + patience_s
    while expected not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, ends - time.monotonic()))
        assert ready, f"no {expected!r} in {patience_s} s, but {shown!r}"
        shown += os.read(terminal, 65_536).decode(errors="replace")
