"""W16: a test suite in which every test has a fresh broker of its own.

Real pytest runs `suite_example.py`. Apache Kafka gets the small JVM that this project's own tests
use (quicker to start than the distribution's), and fewer tests: `suite_s` then adds the missing
ones at the mean time of those that ran.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.loads.base import Figures, LoadFailed, Place, commands


def fresh_broker_suite(place: Place, tests: int, kafka_tests: int) -> Figures:
    """Seconds of a suite of `tests` tests."""
    ran = kafka_tests if place.kind == "kafka" else tests
    report = Path(place.scratch, "report.xml")
    example = Path(__file__).with_name("suite_example.py")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    command += ["--rootdir", place.scratch, "--basetemp", f"{place.scratch}/tests"]
    command += [f"--junit-xml={report}", str(example)]
    commands.append(f"BENCH_BROKER={place.kind} BENCH_TESTS={ran} pytest suite_example.py")
    environment = {**os.environ, "BENCH_BROKER": place.kind, "BENCH_TESTS": str(ran)}
    environment["PYTHONPATH"] = os.getcwd()
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began
    if done.returncode != 0:
        raise LoadFailed(f"the suite failed: {done.stdout[-1500:]}")
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    if len(cases) != ran:
        raise LoadFailed(f"{len(cases)} of {ran} tests ran")
    test_s = sum(float(case.attrib["time"]) for case in cases) / ran
    return {"suite_s": wall_s + (tests - ran) * test_s, "test_s": test_s, "tests_run": ran}
