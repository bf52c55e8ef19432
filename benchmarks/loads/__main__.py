"""The child process: runs one load and prints one JSON line of figures and command lines."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys

from benchmarks.loads import base


def main() -> int:
    task = json.loads(sys.argv[1])
    module, function = task["load"].split(".")
    load = getattr(importlib.import_module(f"benchmarks.loads.{module}"), function)
    try:
        figures = load(base.Place(**task["place"]), **task["arguments"])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    figures.setdefault("client_cpu_s", _cpu_s())
    print(json.dumps({"figures": figures, "commands": base.commands}), flush=True)
    return 0


def _cpu_s() -> float:
    """CPU seconds of this process and the clients it ran: who is the limit of a row?"""
    mine, theirs = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


if __name__ == "__main__":
    # Not sys.exit: hundreds of clients would take their time to leave their groups.
    os._exit(main())
