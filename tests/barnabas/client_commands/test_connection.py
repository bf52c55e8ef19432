from __future__ import annotations

import argparse
import socket

import pytest
from kafka import errors

from barnabas.client_commands.connection import key_values, listening, settings, told
from server.commands.main import addresses
from server.commands.outcomes import UserError


def test_the_addresses_of_a_bootstrap_list() -> None:
    assert addresses("a:1, [::1]:2,") == [("a", 1), ("::1", 2)]
    for wrong in ("", "a", "a:b", "a:99999"):
        with pytest.raises(UserError, match="--bootstrap"):
            addresses(wrong)


def test_the_first_address_that_listens_is_found_and_none_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening(f"127.0.0.1:1,127.0.0.1:{port}", 1.0) == [f"127.0.0.1:{port}"]
    with pytest.raises(UserError, match=r"127.0.0.1:1: Connection refused; .*`barnabas start`"):
        listening("127.0.0.1:1", 1.0)


def test_a_name_that_is_no_utf_8_is_refused_before_anybody_is_asked() -> None:
    """kafka-python would wait for ever for the answer to what it cannot write."""
    bytes_of_records = {"key": "\udcff", "filter": "\udcff", "header": ["a=\udcff"]}
    nobody = {"bootstrap": "127.0.0.1:1", "timeout": 1.0, "client_config": None}
    for name in ({"topic": "\udcff"}, {"topics": ["t", "\udcff"]}, {"group": "\udcff"}):
        with pytest.raises(UserError, match=r"'\\udcff': expected a name in UTF-8") as error:
            settings(argparse.Namespace(**nobody, **bytes_of_records, **name))
        assert error.value.exit_code == 2
    with pytest.raises(UserError, match=r"no broker at 127\.0\.0\.1:1"):
        settings(argparse.Namespace(**nobody, **bytes_of_records, topic="t"))


def test_a_node_that_refuses_is_not_told_as_one_that_was_waited_for() -> None:
    """Of a node that died, and that the others still name; kafka-python tries any of them."""
    arguments = argparse.Namespace(bootstrap="a:1", timeout=6.0)
    reached = r"a node of .* cannot be reached \(.*REFUSED\); .*doctor"
    with pytest.raises(UserError, match=reached), told(arguments):
        raise errors.KafkaConnectionError("111 ECONNREFUSED")
    waited = "no answer from the cluster at a:1 within 6 s"
    with pytest.raises(UserError, match=waited), told(arguments):
        raise errors.KafkaTimeoutError


def test_pairs() -> None:
    assert key_values(["a=1", "b=x=y", "c="], "--config") == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UserError, match="--config 'a': expected KEY=VALUE"):
        key_values(["a"], "--config")
