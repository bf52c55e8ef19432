"""`profile`: figures of a topic whose content is known, from the broker and from its files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests.pipeline.conftest import Pipeline
from compat_tests.pipeline.records import fill_mixed
from testkit.brokers.nodes import RunningBroker

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(400)]


def test_profile_of_a_broker_and_of_its_directory_are_the_same_and_the_page_is_self_contained(
    fresh_broker: Callable[..., RunningBroker], pipeline: Pipeline, tmp_path: Path
) -> None:
    broker = fresh_broker({"log.retention.ms": -1})
    fill_mixed(broker.bootstrap_servers, "orders", 600, codecs=("lz4",))
    page = tmp_path / "orders.html"
    online = pipeline(
        "profile", "--bootstrap", broker.bootstrap_servers, "--topic", "orders", "--html", page
    )
    assert online.returncode == 0, online.stderr
    broker.stop()
    offline = pipeline("profile", broker.data_dir, "--topic", "orders")
    assert offline.returncode == 0, offline.stderr
    assert facts(online.stdout) == facts(offline.stdout)
    assert "codecs       lz4 " in offline.stdout
    assert "values       text " in online.stdout
    assert "600 records" in online.stdout
    assert re.search(r"^ +0 +200 +0 +199 +0 ", online.stdout, re.MULTILINE)
    assert re.search(r"\(null\) +120 ", online.stdout)
    html = page.read_text(encoding="utf-8")
    assert html.count("<h2>") == 6
    assert not re.search(r"(src|href)=|url\(|<script|@import", html), "it loads something"


def facts(text: str) -> list[str]:
    """All but the lines that name the source and the time it took, and what a broker tells not."""
    others = ("topic ", "profiled ", "page")
    lines = [line for line in text.splitlines() if not line.startswith(others)]
    return [line for line in lines if "codec" not in line]
