"""A partition that a start finds in two directories: metadata says which is right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.checkpoint import PARTITION_METADATA
from storage.directories.log_manager import LogManager
from tests.storage.directories.test_log_manager import ORDERS, TOPIC_ID, Node
from tests.storage.log_support import append, read_from, values
from wire.errors import ErrorCode, KafkaError


class Twice:
    """A replica that moved from `a` to `b` and has one record more there; both are found."""

    def __init__(self, root: Path) -> None:
        self.a, self.b = root / "a", root / "b"
        self.node = Node(self.a, self.b)
        self.node.start()
        append(self.node.create(directory=self.a), "first")
        self.node.stop()
        shutil.copytree(self.a / "orders-0", root / "kept")
        shutil.move(self.a / "orders-0", self.b / "orders-0")
        log = self.node.start().get(ORDERS)
        assert log is not None
        append(log, "second")
        self.node.stop()
        shutil.move(root / "kept", self.a / "orders-0")
        self.manager: LogManager = self.node.start()

    def served(self, directory: Path) -> list[bytes | None]:
        return values(read_from(self.manager.get_or_create(ORDERS, TOPIC_ID, self.node.config,
                                                           directory)))  # fmt: skip

    def names(self) -> list[str]:
        return sorted(
            f"{path.parent.name}/{path.name.partition('.')[0]}{path.suffix[33:]}"
            for parent in (self.a, self.b)
            for path in parent.glob("orders-0*")
        )


@pytest.fixture
def twice(tmp_path: Path) -> Iterator[Twice]:
    twice = Twice(tmp_path)
    yield twice
    twice.node.formatted.release()


def test_none_is_served_before_it_is_known_which_is_right(
    twice: Twice, caplog: pytest.LogCaptureFixture
) -> None:
    """The first was, and with it the records that the second has were gone."""
    assert twice.manager.get(ORDERS) is None
    assert twice.names() == ["a/orders-0", "b/orders-0"]


def test_the_one_that_metadata_names_is_used_and_the_other_set_aside(twice: Twice) -> None:
    assert twice.manager.copies.settle(ORDERS, TOPIC_ID, twice.b) == twice.b
    assert twice.served(twice.b) == [b"first", b"second"]
    assert twice.names() == ["a/orders-0-stray", "b/orders-0"]
    twice.node.stop()
    log = twice.node.start().get(ORDERS)
    assert log is not None
    assert values(read_from(log)) == [b"first", b"second"]


def test_a_copy_of_another_topic_is_none(twice: Twice) -> None:
    other = twice.a / "orders-0" / PARTITION_METADATA
    other.unlink()
    assert twice.manager.copies.settle(ORDERS, TOPIC_ID, None) == twice.b
    assert twice.names() == ["a/orders-0-stray", "b/orders-0"]


def test_where_nothing_decides_nobody_is_served_and_nothing_is_touched(twice: Twice) -> None:
    for _ in range(2):
        with pytest.raises(KafkaError, match="remove the one") as error:
            twice.manager.copies.settle(ORDERS, TOPIC_ID, None)
        assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert twice.names() == ["a/orders-0", "b/orders-0"]


def test_a_stop_before_it_was_decided_is_not_clean(twice: Twice) -> None:
    """Neither copy was opened and checked, so none may be trusted at the next start."""
    twice.node.stop()
    assert not (twice.a / ".kafka_cleanshutdown").exists()
    assert not (twice.b / ".kafka_cleanshutdown").exists()


def test_copies_that_are_nobodys_are_all_set_aside(twice: Twice) -> None:
    assert twice.manager.copies.settle(ORDERS, None, None) is None
    assert twice.names() == ["a/orders-0-stray", "b/orders-0-stray"]
