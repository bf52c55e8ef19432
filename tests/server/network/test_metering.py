"""Quotas of clients: who counts with whom, how long somebody waits, and what is said of it."""

from __future__ import annotations

import tracemalloc
from itertools import product
from types import SimpleNamespace

import pytest

from replication.metadata.token_bucket import BURST_S
from replication.partition.requests import FetchResult
from server.network import metering
from server.network.api import Operation, Resource
from server.network.channel import ANONYMOUS
from server.network.metering import ClientQuotas, Meter, connection_rates
from storage.open_files import FileHandle, FileSlice
from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from tests.server.handlers.access.test_rules import fetch, produce
from tests.server.handlers.access.test_table import Policy
from wire.messages.cluster import ApiVersionsRequest
from wire.messages.metadata_records import ClientQuotaRecord
from wire.messages.share import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from wire.records import Record, build_batch

PRODUCER, CONSUMER, REQUEST = range(3)
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")


def quota(key, value, **entity):
    parts = [
        ClientQuotaRecord.Entity(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in entity.items()
    ]
    return ClientQuotaRecord(entity=parts, key=key, value=value, remove=False)


def quotas_of(*records):
    quotas = ClientQuotas()
    quotas.update(records)
    return quotas


# ---- the rate


def sent_in(meter, size, duration_ms, start_ms=0):
    """What a client gets through that sends `size` whenever it may."""
    now_ms, sent = start_ms, 0
    while now_ms < start_ms + duration_ms:
        sent += size
        now_ms += meter.record(size, now_ms) or 1
    return sent, now_ms


@pytest.mark.parametrize("bound", [1_000.0, 100_000.0, 1_000_000.0])
@pytest.mark.parametrize("a_second", [1_000, 100, 20, 5])
def test_ten_seconds_give_ten_seconds_worth_at_any_time(bound, a_second):
    """Within three per cent, besides the one request that went below zero."""
    meter, size = Meter(bound), bound / a_second
    now_ms = 5
    for _ in range(5):
        sent, now_ms = sent_in(meter, size, 10_000, now_ms)
        assert sent == pytest.approx(bound * 10, rel=0.03, abs=0.03 * bound * 10 + size)
        now_ms += 60_000  # silent: that is no credit
    sent, _ = sent_in(Meter(bound), size, 60_000)
    assert sent == pytest.approx(bound * 60, rel=0.02)


def test_below_the_bound_nobody_waits():
    meter = Meter(1_000)
    assert not any(meter.record(99, now_ms) for now_ms in range(0, 60_000, 100))


def test_how_long():
    meter = Meter(100)
    assert meter.record(20, 0) == 0
    assert meter.record(100, 0) == 1_000
    assert meter.record(900, 500) == 9_500
    assert meter.record(0, 10_000) == 0
    assert meter.record(0, 9_000) == 0, "a clock that was read earlier"
    assert Meter(1_000_000).record(100_000_000, 5) == 99_800


# ---- who


LEVELS = [
    {"user": "a", "client_id": "c"}, {"user": "a", "client_id": None}, {"user": "a"},
    {"user": None, "client_id": "c"}, {"user": None, "client_id": None}, {"user": None},
    {"client_id": "c"}, {"client_id": None},
]  # fmt: skip


def meters(quotas, principal, client):
    """What counts for them: of Produce, of Fetch, of anything."""
    apis = [SimpleNamespace(api_key=key, operation=None) for key in (0, 1, 12)]
    found = [quotas._find((principal, client, api.api_key), api) or [None] * 3 for api in apis]
    return found[0][0], found[1][1], found[2][2]


@pytest.mark.parametrize("defined", list(product([False, True], repeat=8)), ids=str)
def test_the_first_that_is_defined_counts(defined):
    records = [
        quota(KEYS[0], float(rank + 1), **level)
        for rank, level in enumerate(LEVELS)
        if defined[rank]
    ]
    meter = meters(quotas_of(*records), "User:a", "c")[PRODUCER]
    first = next((rank + 1 for rank in range(8) if defined[rank]), None)
    assert (meter and meter.bound) == first


@pytest.mark.parametrize(
    ("entity", "shared", "apart"),
    [
        ({"user": "a"}, [("a", "c"), ("a", "d")], [("b", "c")]),
        ({"user": None}, [("b", "c"), ("b", "d")], [("c", "c")]),
        ({"client_id": None}, [("a", "c"), ("b", "c")], [("a", "d")]),
        ({"user": None, "client_id": None}, [("a", "c"), ("a", "c")], [("a", "d")]),
    ],
)
def test_who_counts_together(entity, shared, apart):
    quotas = quotas_of(quota(KEYS[0], 5.0, **entity))
    (first,) = {id(meters(quotas, f"User:{user}", client)[PRODUCER]) for user, client in shared}
    for user, client in apart:
        assert id(meters(quotas, f"User:{user}", client)[PRODUCER]) != first


def test_each_key_is_for_itself_and_changes_at_once():
    quotas = quotas_of(quota(KEYS[0], 5.0, user="a"), quota(KEYS[1], 7.0, client_id="c"))
    producer, consumer, request = meters(quotas, "User:a", "c")
    assert (producer.bound, consumer.bound, request) == (5.0, 7.0, None)
    producer.record(3.0, 0)
    quotas.update([quota(KEYS[0], 9.0, user="a")])
    again, consumer, _ = meters(quotas, "User:a", "c")
    assert again is producer, "what was used stays used"
    assert (again.bound, consumer) == (9.0, None)
    quotas.update([])
    assert not quotas.any
    assert meters(quotas, "User:a", "c") == (None, None, None)


def test_what_this_broker_does_not_keep_to_is_not_measured():
    assert not quotas_of(
        quota("controller_mutation_rate", 1.0, user="a"),
        quota("connection_creation_rate", 1.0, ip="10.0.0.1"),
    ).any


def test_a_mapped_address_is_the_one_it_stands_for():
    rate = "connection_creation_rate"
    records = [quota(rate, 5.0, ip="::ffff:10.1.2.3"), quota(rate, 7.0, ip="10.1.2.3")]
    for order in (records, records[::-1]):
        assert connection_rates(order) == {"10.1.2.3": 5.0}
    assert connection_rates([quota(rate, 5.0, ip="::FFFF:a01:203")]) == {"10.1.2.3": 5.0}
    assert connection_rates([quota(rate, 5.0, ip="FE80::1")]) == {"fe80::1": 5.0}


def test_a_host_name_that_apache_kafka_wrote_takes_no_rate_from_others(caplog):
    """Its controller takes names that it can resolve; there may be a log of its own here."""
    rate = "connection_creation_rate"
    records = [quota(rate, 5.0, ip="db.example\n"), quota(rate, 7.0, ip="10.1.2.3")]
    assert connection_rates(records) == {"10.1.2.3": 7.0}
    assert r"ip='db.example\n'" in caplog.text


def test_names_of_clients_choice_are_bounded():
    quotas = quotas_of(quota(KEYS[0], 5.0, client_id=None))
    for number in range(20_050):
        meters(quotas, "User:a", str(number))
    assert len(quotas._meters) <= 10_000


def test_who_makes_names_up_gets_rid_of_no_debt(monkeypatch):
    monkeypatch.setattr(metering, "_METERS_MAX", 100)
    quotas = quotas_of(quota(KEYS[0], 5.0, client_id=None))
    meters(quotas, "User:a", "owes")[PRODUCER].record(1_000, 50)
    for number in range(1_000):
        meters(quotas, "User:b", str(number))[PRODUCER].record(1, 60)
    assert meters(quotas, "User:a", "owes")[PRODUCER].record(1, 70) > 100_000


def test_long_names_are_not_kept():
    """A client id may have 32 KiB: ten thousand of them would be 300 MiB."""
    quotas = quotas_of(quota(KEYS[0], 5.0, client_id=None))
    tracemalloc.start()
    try:
        names = [f"{number}".ljust(32_000, "x") for number in range(3)]
        first = meters(quotas, "User:a", names[0])[PRODUCER]
        assert meters(quotas, "User:a", names[1])[PRODUCER] is not first
        assert meters(quotas, "User:a", names[0])[PRODUCER] is first, "they are told apart"
        del names
        assert tracemalloc.get_traced_memory()[0] < 32_000
    finally:
        tracemalloc.stop()


# ---- on a connection


def metered(*records, authorizer=None):
    asked = Asked(FakeBroker(image_of(topic_image("a", 2))), authorizer)
    asked.channel.principal = "User:alice"
    asked.requests.measure(quotas_of(*records).context)
    completed = []
    complete = asked.processor.complete

    def noted(channel, request, parts):
        completed.append(request.throttle_ms)
        complete(channel, request, parts)

    asked.processor.complete = noted
    return asked, completed


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@pytest.mark.parametrize("short", [True, False])
def test_a_producer_is_told_how_long_it_is_muted(version, short):
    asked, throttled = metered(quota(KEYS[0], 10.0, user="alice"))
    asked.broker.metadata.topics_by_id[b"a" * 16] = asked.broker.metadata.topics_by_name["a"]
    if not short:
        asked.requests._apis[0].load()
        asked.requests._apis[0].ordinary = None
    first = asked.ask(produce("a"), version)
    assert first.responses[0].partition_responses[0].error_code == 0
    assert (first.throttle_time_ms, throttled) == (throttled[0], [throttled[0]])
    second = asked.ask(produce("a"), version)
    assert second.throttle_time_ms == throttled[1] > 5_000
    assert second.responses[0].partition_responses[0].base_offset == 100
    assert len(asked.broker.replica_manager.appended) == 2, "nothing is refused"


@pytest.mark.parametrize("acks", [0, 1])
def test_the_longest_mute_is_what_can_be_told(acks):
    """A quota that is as good as none is what an operator stops a client with. The batch is stored:
    an answer that cannot be written would have it sent again for ever."""
    asked, throttled = metered(quota(KEYS[0], 1e-300, user="alice"))
    answer = asked.ask(produce("a", acks=acks), 9)
    assert throttled == [2**31 - 1]
    assert (answer is None) if acks == 0 else (answer.throttle_time_ms == 2**31 - 1)


def test_without_acks_there_is_only_the_mute():
    asked, throttled = metered(quota(KEYS[0], 1.0, client_id="test"))
    assert asked.ask(produce("a", acks=0), 9) is None
    assert throttled[0] > 10_000


@pytest.mark.parametrize("version", [4, 11, 12, 13])
def test_a_consumer_is_told_how_long_it_is_muted(version):
    asked, throttled = metered(quota(KEYS[1], 1.0, user=None))
    answer = asked.ask(fetch("a"), version)
    assert answer.throttle_time_ms == throttled[0] > 10_000
    assert len(answer.responses) == 1
    assert asked.broker.replica_manager.fetched


@pytest.mark.parametrize("api_key", [1, 78])
def test_who_fetches_for_a_share_group_is_a_consumer(api_key):
    """Fetch and ShareFetch count together."""
    quotas = quotas_of(quota(KEYS[1], 5.0, user="a"))
    api = SimpleNamespace(api_key=api_key, operation=None)
    of_request, of_answer, of_time = quotas._find(("User:a", "c", api_key), api)
    assert (of_request, of_time) == (None, None)
    assert of_answer is meters(quotas, "User:a", "c")[CONSUMER]


def test_one_fetch_reads_no_more_than_the_window_gives():
    asked, _ = metered(quota(KEYS[1], 100.0, user=None))
    limits = []
    answered = asked.broker.replica_manager.fetch

    def noted(replica_id, max_wait_ms, min_bytes, max_bytes, *rest, **named):
        limits.append(max_bytes)
        answered(replica_id, max_wait_ms, min_bytes, max_bytes, *rest, **named)

    asked.broker.replica_manager.fetch = noted
    asked.ask(fetch("a"), 12)
    assert limits == [20]


def test_a_consumer_pays_for_no_batch_that_it_cannot_use(tmp_path):
    """kafka-consumer-perf-test got 161,000 of 300,000 bytes a second, in batches of 64,000."""
    batch = bytes(build_batch([Record(value=bytes(1_000))], base_offset=0))
    (tmp_path / "log").write_bytes(batch * 3)
    asked, _ = metered(quota(KEYS[1], len(batch) * 2.5 / BURST_S, user=None))
    size = int(len(batch) * 2.5)
    records = FileSlice(FileHandle.open(tmp_path / "log"), 0, size)
    asked.broker.replica_manager.fetch_results["a", 0] = FetchResult(records=records)
    answer = asked.ask(fetch("a"), 12)
    assert bytes(answer.responses[0].partitions[0].records) == batch * 2


def test_a_request_counts_for_the_time_it_takes():
    asked, throttled = metered(quota(KEYS[2], 1e-6, user="alice"))
    answer = asked.ask(fetch("a"), 12)
    assert throttled == [1_000], "at most one window"
    assert answer.throttle_time_ms == 1_000


@pytest.mark.parametrize(("worked_ms", "throttle_ms"), [(2, 0), (7, 500), (5_000, 1_000)])
def test_a_request_that_waits_counts_for_the_time_before(monkeypatch, worked_ms, throttle_ms):
    """Whoever answers it: a consumer that waited for a record used to pay for all of the wait if
    its own thread took the record in, and for nothing if another did."""
    now_ns = 0
    monkeypatch.setattr(metering, "perf_counter_ns", lambda: now_ns)
    asked, throttled = metered(quota(KEYS[2], 1.0, user="alice"))
    waiting = []

    def wait(*given, **_named):
        nonlocal now_ns
        now_ns += worked_ms * 1_000_000
        waiting.append(given[6])

    asked.broker.replica_manager.fetch = wait
    assert asked.ask(fetch("a"), 12) is None
    now_ns += 60_000_000_000
    waiting[0]([FetchResult(0)])
    assert throttled == [throttle_ms]


@pytest.mark.parametrize(("allowed", "throttle_ms"), [(True, 0), (False, 1_000)])
def test_what_is_done_for_the_cluster_is_exempt_for_who_may_do_it_only(allowed, throttle_ms):
    """Anybody may ask, and be refused as often as he likes."""
    policy = Policy([(Operation.CLUSTER_ACTION, Resource.CLUSTER, "kafka-cluster")] * allowed)
    asked, throttled = metered(quota(KEYS[2], 1e-6, user="alice"), authorizer=policy)
    asked.broker.share_coordinator = SimpleNamespace(
        read=lambda _request, told: told(ReadShareGroupStateResponse(results=[]))
    )
    assert asked.ask(ReadShareGroupStateRequest(group_id="g", topics=[]), 0).results == []
    assert throttled == [throttle_ms]


def test_strangers_use_up_nobodys_quota():
    """What they ask before they log in would count for one user, ANONYMOUS: a crowd of them would
    have muted everybody else who comes for a second."""
    asked, throttled = metered(quota(KEYS[2], 1e-6, user=None), quota(KEYS[2], 1e-6, user="alice"))
    asked.channel.is_known, asked.channel.principal = False, ANONYMOUS
    assert asked.ask(ApiVersionsRequest(), 3).throttle_time_ms == 0
    asked.channel.is_known, asked.channel.principal = True, "User:alice"
    assert asked.ask(ApiVersionsRequest(), 3).throttle_time_ms == 1_000
    assert throttled == [0, 1_000]


def test_others_are_not_muted():
    asked, throttled = metered(quota(KEYS[0], 1.0, user="bob"), quota(KEYS[1], 1.0, user="bob"))
    assert asked.ask(produce("a"), 9).throttle_time_ms == 0
    assert asked.ask(fetch("a"), 12).throttle_time_ms == 0
    assert throttled == [0, 0]


def test_replicas_are_exempt():
    asked, throttled = metered(*(quota(key, 1e-6, user=None) for key in KEYS[1:]))
    asked.broker.metadata.brokers[2] = asked.broker.metadata.brokers[1]
    asked.broker.replica_manager.follower_session = None
    assert asked.ask(fetch("a", replica_id=2), 12).throttle_time_ms == 0
    assert throttled == [0]
