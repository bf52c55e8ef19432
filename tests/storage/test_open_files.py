"""How many descriptors the process may have."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from storage import open_files
from storage.open_files import descriptor_budget, raise_descriptor_limit


@pytest.fixture
def low_soft_limit() -> Iterator[int]:
    """A soft limit below the hard one, whatever this machine's is; gives the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_takes_all_the_descriptors_it_may_have(low_soft_limit: int) -> None:
    """With the usual soft limit of 1,024 some 480 segments could stay open."""
    before = descriptor_budget()
    limit = raise_descriptor_limit()
    assert (limit is None) == (low_soft_limit == resource.RLIM_INFINITY)
    assert limit in (None, low_soft_limit)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == low_soft_limit
    assert descriptor_budget() > before


def test_a_limit_that_stays_low_is_told(
    low_soft_limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    with monkeypatch.context() as refused:
        refused.setattr(resource, "setrlimit", refuse)
        assert open_files.raise_descriptor_limit() == 512
    assert "cannot be raised soft=512" in caplog.text
    assert "limit of open files is low limit=512" in caplog.text
