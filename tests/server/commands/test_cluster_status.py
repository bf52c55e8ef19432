from __future__ import annotations

import pytest

from server.commands.cluster_status import Probe, _status
from wire.messages.cluster import DescribeClusterResponse, MetadataResponse


@pytest.mark.parametrize(
    ("lacks_rights", "words"),
    [(False, "quorum lost: no node knows a leader of it"), (True, "not told to this user")],
)
def test_a_quorum_that_nobody_tells_of_is_lost_unless_rights_are_missing(
    lacks_rights: bool, words: str
) -> None:
    broker = DescribeClusterResponse.Broker(broker_id=1, host="a", port=9092, rack=None)
    cluster = DescribeClusterResponse(
        error_code=0, cluster_id="c", controller_id=1, brokers=[broker]
    )
    metadata = MetadataResponse(brokers=[], cluster_id="c", controller_id=1, topics=[])
    probes = {1: Probe(None, None, lacks_rights)}
    status = _status(cluster, None, {1: ("a", 9092)}, probes, metadata)
    assert words in status.quorum
    assert not status.is_whole
