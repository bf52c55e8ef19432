"""Mutation testing: small faults are put into a module, one at a time, and its tests must fail.

    python -m tests.mutation.run storage/log/append.py     all faults of a module
    python -m tests.mutation.run --sample 30 --seed 7      some, of a few of those that are listed
    python -m tests.mutation.run --since HEAD~3            those in lines that changed since

`survivors.toml` beside this file lists the modules, where each one's tests are, and of each fault
that no test notices why none needs to. A survivor that is not there, or one that is there and is
noticed now, makes the run fail. (mutmut and cosmic-ray run all tests of a project for each fault,
or rewrite its functions; here a fault costs the tests that run its line, mostly a second.)

A fault is compiled from the changed syntax tree and imported in a forked child, so nothing is
written. The children import the project afresh; this process never does, but has what is not the
project's, so that they need not.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

from tests.mutation.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
LEDGER = Path(__file__).with_name("survivors.toml")
# Plain: the hook that rewrites assertions would import the modules itself.
_PYTEST = (
    "-x",
    "-q",
    "--assert=plain",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
    "--timeout=30",
)
_OURS = ("barnabas", "pipeline", "replication", "server", "storage", "wire", "testkit", "tests")
# Threads that read as fast as they can take far longer when each line is told of.
_TIMEOUT_MEASURED = "--timeout=120"
_NOTICED_BY_TIME_S = 120.0
SAMPLED_MODULES = 8


class Target(NamedTuple):
    module: str
    tests: tuple[str, ...]


class Fault(NamedTuple):
    target: Target
    mutant: Mutant

    @property
    def name(self) -> tuple[str, str, str]:
        """What a survivor is known by: lines move, these stay."""
        return self.target.module, self.mutant.function, self.mutant.change


class _TestsOfLines:
    """A plugin of pytest: which of its tests run which lines of a module, the quickest first."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        modules = [str(ROOT / target.module) for target in targets]
        self._measured = coverage.Coverage(data_file=None, config_file=False, include=modules)
        self._seconds: dict[str, float] = {}
        self.failures: list[str] = []
        self._measured.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(f"{report.nodeid} ({report.when})\n{report.longreprtext[-2_000:]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._measured.switch_context(item.nodeid)
        started = time.monotonic()
        result = yield
        self._seconds[item.nodeid] = time.monotonic() - started
        self._measured.switch_context("")
        return result

    def found(self) -> list[dict[int, list[str]]]:
        self._measured.stop()
        return [self._found(target) for target in self._targets]

    def _found(self, target: Target) -> dict[int, list[str]]:
        """What ran while the module was imported concerns all of its tests; another module's may
        have been the first to import it."""
        lines = self._measured.get_data().contexts_by_lineno(str(ROOT / target.module))
        found = {}
        for line, tests in lines.items():
            own = [test for test in tests if test.startswith(target.tests)]
            own.sort(key=self._seconds.__getitem__)
            found[line] = own if own and "" not in tests else [*own, *target.tests]
        return found


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the changed tree in place of the module's file."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._file = ROOT / module
        self._name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._tree = tree

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._file, loader=self)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(self._tree, str(self._file), "exec"), module.__dict__)


def tests_of_lines(targets: list[Target]) -> dict[Target, dict[int, list[str]]]:
    """Runs the tests of all, each once, as the modules are. Raises SystemExit if one fails."""
    paths = dict.fromkeys(path for target in targets for path in target.tests)
    with tempfile.NamedTemporaryFile("r") as told:

        def measure() -> int:
            plugin = _TestsOfLines(targets)
            code = pytest.main([*_PYTEST, _TIMEOUT_MEASURED, *paths], plugins=[plugin])
            found = [plugin.found(), list(sys.modules), plugin.failures]
            Path(told.name).write_text(json.dumps(found))
            return int(code)

        code = _in_a_child(measure, limit_s=900)
        found, imported, failures = json.loads(told.read() or "[[], [], []]")
    if code != 0:
        why = "\n".join(failures) or f"exit code {code} of these: {' '.join(paths)}"
        raise SystemExit(f"not all tests pass as they are: {why}")
    _import_what_is_not_ours(imported)
    return {
        target: {int(line): tests for line, tests in lines.items()}
        for target, lines in zip(targets, found, strict=True)
    }


def _import_what_is_not_ours(modules: list[str]) -> None:
    """What the tests import takes longer than most of them; no two of them disagree on it."""
    for name in modules:
        if name.partition(".")[0] not in _OURS:
            with contextlib.suppress(Exception):  # made by hand, as `six.moves` is
                importlib.import_module(name)


def is_noticed(fault: Fault, tests: list[str]) -> bool:
    """Whether any of its tests fails, or never ends."""

    def attempt() -> int:
        sys.meta_path.insert(0, _Changed(fault.target.module, fault.mutant.tree))
        return int(pytest.main([*_PYTEST, *tests]))

    return bool(tests) and _in_a_child(attempt, _NOTICED_BY_TIME_S) != 0


def _in_a_child(work: Callable[[], int], limit_s: float) -> int:
    """Its exit status; negative: it was ended, perhaps after its time."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        code = 3
        try:
            code = work()
        finally:
            os._exit(code)
    if signal.sigtimedwait({signal.SIGCHLD}, limit_s) is None:
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def faults_of(target: Target) -> list[Fault]:
    return [Fault(target, one) for one in mutants_of((ROOT / target.module).read_text())]


def read_ledger() -> tuple[list[Target], dict[tuple[str, str, str], str]]:
    """The modules that are looked after, and the reasons of those that survive."""
    ledger = tomllib.loads(LEDGER.read_text())
    targets = [Target(module, tuple(tests)) for module, tests in ledger["modules"].items()]
    survivors = {
        (one["module"], one["function"], one["change"]): one["why"]
        for one in ledger.get("survivor", [])
    }
    return targets, survivors


def chosen(targets: list[Target], arguments: argparse.Namespace) -> list[Fault]:
    if arguments.modules:
        targets = [one for one in targets if one.module in arguments.modules]
    faults = [fault for target in targets for fault in faults_of(target)]
    if arguments.since:
        changed = {one.module: changed_lines(one.module, arguments.since) for one in targets}
        faults = [one for one in faults if one.mutant.line in changed[one.target.module]]
    if arguments.sample and arguments.sample < len(faults):
        faults = _sampled(faults, arguments.sample, random.Random(arguments.seed))
    return sorted(faults, key=lambda fault: (fault.target.module, fault.mutant.line))


def _sampled(faults: list[Fault], count: int, chance: random.Random) -> list[Fault]:
    """Of a few modules, each as likely as it has faults: all their tests are run to begin with."""
    modules: set[str] = set()
    while len(modules) < SAMPLED_MODULES and len(modules) < len({one.target for one in faults}):
        modules.add(chance.choice(faults).target.module)
    of_these = [one for one in faults if one.target.module in modules]
    return chance.sample(of_these, min(count, len(of_these)))


def changed_lines(module: str, since: str) -> set[int]:
    """Of a module as it is now, against a commit."""
    command = ["git", "diff", "-U0", since, "--", module]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines: set[int] = set()
    for begin, count in re.findall(r"^@@ .*\+(\d+)(?:,(\d+))? @@", told, re.MULTILINE):
        lines.update(range(int(begin), int(begin) + int(count or 1)))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Small faults that the unit tests must notice.")
    parser.add_argument("modules", nargs="*", help="files of survivors.toml (default: all)")
    parser.add_argument("--sample", type=int, help="so many of them, not all")
    parser.add_argument("--seed", default="0", help="which ones (default: 0)")
    parser.add_argument("--since", help="only in lines that changed since this commit")
    parser.add_argument("--tests", nargs="+", help="for one module that is not listed yet")
    arguments = parser.parse_args()
    targets, explained = read_ledger()
    if arguments.tests:
        targets = [Target(module, tuple(arguments.tests)) for module in arguments.modules]
    started, wrong, noticed = time.monotonic(), 0, 0
    faults = chosen(targets, arguments)
    if not faults:
        print("no faults: nothing of what was asked for is listed, or changed")
        return 0
    lines = tests_of_lines(list(dict.fromkeys(fault.target for fault in faults)))
    print(f"tests run as they are: {time.monotonic() - started:.0f} s", flush=True)
    for fault in faults:
        target = fault.target
        is_caught = is_noticed(fault, lines[target].get(fault.mutant.line, []))
        noticed += is_caught
        if is_caught == (fault.name in explained):
            wrong += 1
            told = "noticed now, take it off the list" if is_caught else "SURVIVES"
            place = f"{target.module}:{fault.mutant.line} {fault.mutant.function}"
            print(f"  {place}: {told}: {fault.mutant.change}", flush=True)
    took = time.monotonic() - started
    print(
        f"{len(faults)} faults, {noticed} noticed, {wrong} to be explained or tested, {took:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
