"""`barnabas completion`, as bash runs it."""

from __future__ import annotations

import argparse
import subprocess

import pytest

from barnabas.client_commands import completion


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser()
    commands = root.add_subparsers()
    completion.add_commands(commands)
    topic = commands.add_parser("topic").add_subparsers()
    create = topic.add_parser("create")
    create.add_argument("--kind", choices=["a", "b"])
    create.add_argument("--hidden", help=argparse.SUPPRESS)
    return root


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    arguments = parser().parse_args(["completion", shell])
    assert arguments.run(arguments) == 0
    return capsys.readouterr().out


def test_each_word_is_followed_by_what_may_follow_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags and their values that were given before are no words of the command."""
    lines = {
        "": "completion topic --help --version",
        "to": "topic",
        "completion ": "-h --help bash zsh",
        "topic ": "create -h --help",
        "topic --help cr": "create",
        "topic create --": "--help --kind",
        "topic create --kind ": "-h --help --kind a b",
        "topic create --kind a b": "b",
        "none ": "completion topic --help --version",
    }
    asked = "".join(
        f"COMP_WORDS=(barnabas {line}{'' if line[-1:].strip() else chr(39) * 2}); COMP_CWORD="
        '$((${#COMP_WORDS[@]} - 1)); _barnabas; echo "${COMPREPLY[@]}"\n'
        for line in lines
    )
    run = subprocess.run(["bash", "-c", script("bash", capsys) + asked], capture_output=True,
                         text=True, timeout=60, check=True)  # fmt: skip
    assert dict(zip(lines, run.stdout.splitlines(), strict=True)) == lines
    assert run.stderr == ""


def test_zsh_takes_the_script_of_bash_once_it_knows_how(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bash, zsh = (script(shell, capsys).splitlines() for shell in ("bash", "zsh"))
    taught = ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"]
    assert [line for line in zsh if line not in taught][2:] == bash[2:]
    assert [line for line in zsh if line in taught] == taught
    assert bash[2].startswith("_barnabas()")


def test_another_shell_is_refused() -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["completion", "fish"])
