"""Fetch sessions (KIP-227): what opens, continues, closes and evicts them, and what is news."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.partition.requests import FetchResult
from server.handlers import fetch_session
from server.handlers.fetch_session import EVICTION_MS, FetchSessionCache, next_epoch
from wire.errors import ErrorCode, KafkaError
from wire.messages.data import FetchRequest

ID_A, ID_B = b"A" * 16, b"B" * 16
NAMES = {ID_A: "a", ID_B: "b"}


def resolve(topic_id):
    return NAMES.get(topic_id, "")


def fetch(session_id=0, epoch=0, topics=None, forgotten=None):
    """`topics`: {name or id: {partition: offset}}."""

    def named(key):
        return {"topic_id": key} if isinstance(key, bytes) else {"topic": key}

    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.Topic(
                **named(key),
                partitions=[
                    FetchRequest.Topic.Partition(
                        partition=index, fetch_offset=offset, partition_max_bytes=1000
                    )
                    for index, offset in partitions.items()
                ],
            )
            for key, partitions in (topics or {}).items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(**named(key), partitions=indexes)
            for key, indexes in (forgotten or {}).items()
        ],
    )


def result(hw=10, start=0, records=None, error=0, **more):
    return FetchResult(error, high_watermark=hw, log_start_offset=start, records=records, **more)


def read(context):
    return [(r.topic, r.partition_index, r.fetch_offset) for r in context.requests]


def told(context, results, now_ms=0):
    return [(r.topic, r.partition_index) for r, _ in context.select(results, now_ms)]


@pytest.fixture
def cache():
    return FetchSessionCache(4)


def opened(cache, topics, version=12, now_ms=0, results=None):
    context = cache.context(fetch(topics=topics), version, now_ms, resolve)
    context.select(results or [result() for _ in context.requests], now_ms)
    return context.session_id


def refusal(cache, request, version=12):
    with pytest.raises(KafkaError) as raised:
        cache.context(request, version, 0, resolve)
    return raised.value.code


def test_a_sessionless_fetch_is_answered_whole_and_leaves_nothing(cache):
    context = cache.context(fetch(epoch=-1, topics={"a": {0: 5, 1: 6}}), 12, 0, resolve)
    assert read(context) == [("a", 0, 5), ("a", 1, 6)]
    assert told(context, [result(), result(error=3)]) == [("a", 0), ("a", 1)]
    assert context.session_id == 0
    assert len(cache) == 0


@pytest.mark.parametrize(("version", "key"), [(12, "a"), (13, ID_A)])
@pytest.mark.parametrize("epoch", [-1, 0])
def test_of_a_partition_that_is_named_twice_the_last_word_counts(cache, version, key, epoch):
    """Each of 100,000 mentions of one partition was read and answered."""
    request = fetch(epoch=epoch, topics={key: {0: 5, 1: 6}})
    request.topics += fetch(topics={key: {0: 7}}).topics
    context = cache.context(request, version, 0, resolve)
    assert read(context) == [("a", 0, 7), ("a", 1, 6)]
    assert told(context, [result(), result()]) == [("a", 0), ("a", 1)]


def test_an_opened_session_is_answered_whole_then_with_news_only(cache):
    session_id = opened(cache, {"a": {0: 0, 1: 0, 2: 0}})
    assert session_id > 0
    context = cache.context(fetch(session_id, 1), 12, 0, resolve)
    assert read(context) == [("a", 0, 0), ("a", 1, 0), ("a", 2, 0)]
    assert told(context, [result(), result(hw=11), result(start=1)]) == [("a", 1), ("a", 2)]
    context = cache.context(fetch(session_id, 2), 12, 0, resolve)
    assert told(context, [result(), result(hw=11), result(start=1)]) == []
    context = cache.context(fetch(session_id, 3), 12, 0, resolve)
    news = [
        result(records=b"r"),
        result(hw=11, diverging_epoch=(1, 2)),
        result(start=1, preferred_read_replica=2),
    ]
    assert len(told(context, news)) == 3


def test_a_partition_with_an_error_is_told_in_each_answer_and_once_when_it_is_well(cache):
    session_id = opened(cache, {"a": {0: 0}}, results=[result(error=6, hw=-1)])
    for epoch in (1, 2):
        context = cache.context(fetch(session_id, epoch), 12, 0, resolve)
        assert told(context, [result(error=6, hw=-1)]) == [("a", 0)]
    context = cache.context(fetch(session_id, 3), 12, 0, resolve)
    assert told(context, [result()]) == [("a", 0)]
    context = cache.context(fetch(session_id, 4), 12, 0, resolve)
    assert told(context, [result()]) == []


def test_who_truncates_is_told_the_high_watermark_once_more(cache):
    """The simulator's seed 3097: a follower takes none from an answer that makes it truncate."""
    session_id = opened(cache, {"a": {0: 7}}, results=[result(hw=7, diverging_epoch=(2, 7))])
    answers = []
    for epoch in (1, 2):
        context = cache.context(fetch(session_id, epoch), 12, 0, resolve)
        answers.append(told(context, [result(hw=7)]))
    assert answers == [[("a", 0)], []]


def test_the_very_same_result_again_is_no_news_unless_an_error_came_between(cache):
    quiet = result(hw=10)
    session_id = opened(cache, {"a": {0: 10}}, results=[result(hw=5)])
    answers = []
    for epoch, answer in enumerate([quiet, quiet, result(error=6), quiet, quiet], 1):
        context = cache.context(fetch(session_id, epoch), 12, 0, resolve)
        answers.append(told(context, [answer]))
    assert answers == [[("a", 0)], [], [("a", 0)], [("a", 0)], []]


def test_partitions_are_added_changed_and_forgotten(cache):
    session_id = opened(cache, {"a": {0: 0, 1: 0}})
    request = fetch(session_id, 1, topics={"a": {0: 9}, "b": {0: 3}}, forgotten={"a": [1]})
    context = cache.context(request, 12, 0, resolve)
    assert read(context) == [("a", 0, 9), ("b", 0, 3)]
    assert told(context, [result(), result()]) == [("b", 0)]
    assert cache.partition_count == 2


def test_a_session_that_becomes_empty_is_closed(cache):
    session_id = opened(cache, {"a": {0: 0}})
    context = cache.context(fetch(session_id, 1, forgotten={"a": [0]}), 12, 0, resolve)
    assert (context.session_id, context.requests) == (0, [])
    assert refusal(cache, fetch(session_id, 2)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_wrong_ids_epochs_and_versions_are_refused_and_do_no_harm(cache):
    session_id = opened(cache, {"a": {0: 0}})
    assert refusal(cache, fetch(session_id + 1, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (2, 3, 2**31 - 1):
        assert refusal(cache, fetch(session_id, epoch)) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(cache, fetch(session_id, 1), 13) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    by_id = opened(cache, {ID_A: {0: 0}}, version=13)
    assert refusal(cache, fetch(by_id, 1), 12) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert read(cache.context(fetch(session_id, 1), 12, 0, resolve)) == [("a", 0, 0)]


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_it_names(cache, epoch):
    first = opened(cache, {"a": {0: 0}})
    context = cache.context(fetch(first, epoch, topics={"a": {0: 0}}), 12, 0, resolve)
    told(context, [result()])
    assert (context.session_id > 0) == (epoch == 0)
    assert context.session_id != first
    assert refusal(cache, fetch(first, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_epochs_wrap_to_one(cache):
    session_id = opened(cache, {"a": {0: 0}})
    cache._sessions[session_id].epoch = 2**31 - 1
    cache.context(fetch(session_id, 2**31 - 1), 12, 0, resolve).select([result()], 0)
    assert read(cache.context(fetch(session_id, 1), 12, 0, resolve)) == [("a", 0, 0)]
    assert [next_epoch(e) for e in (1, 2, 2**31 - 1)] == [2, 3, 1]


def test_the_answer_of_an_overtaken_request_is_refused(cache):
    session_id = opened(cache, {"a": {0: 0}})
    slow = cache.context(fetch(session_id, 1), 12, 0, resolve)
    cache.context(fetch(session_id, 2), 12, 0, resolve)
    with pytest.raises(KafkaError) as raised:
        slow.select([result()], 0)
    assert raised.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_topic_id_that_becomes_known_is_read_without_being_asked_for_again(cache):
    new = b"N" * 16
    session_id = opened(cache, {new: {0: 4}, ID_A: {0: 1}}, version=13)
    context = cache.context(fetch(session_id, 1), 13, 0, resolve)
    assert read(context) == [("", 0, 4), ("a", 0, 1)]
    context.select([result(error=100), result()], 0)
    context = cache.context(fetch(session_id, 2), 13, 0, lambda i: "new" if i == new else "a")
    assert read(context) == [("new", 0, 4), ("a", 0, 1)]


def test_partitions_that_gave_records_go_last_so_that_none_starves(cache):
    session_id = opened(cache, {"a": {0: 0, 1: 0, 2: 0}})
    context = cache.context(fetch(session_id, 1), 12, 0, resolve)
    context.select([result(records=b"r"), result(), result()], 0)
    context = cache.context(fetch(session_id, 2), 12, 0, resolve)
    assert [r.partition_index for r in context.requests] == [1, 2, 0]


def test_a_full_cache_refuses_a_session_but_answers(cache):
    for _ in range(4):
        opened(cache, {"a": {0: 0}})
    assert opened(cache, {"a": {0: 0, 1: 0}}) == 0
    assert cache.evictions == 0


def test_sessions_hold_so_many_partitions_and_the_largest_go_first(cache, monkeypatch):
    monkeypatch.setattr(fetch_session, "PARTITIONS_MAX", 10)
    small = opened(cache, {"a": {0: 0}})
    large = opened(cache, {"a": dict.fromkeys(range(8), 0)})
    assert opened(cache, {"a": dict.fromkeys(range(11), 0)}) == 0, "there is no room for it"
    assert cache.partition_count == 9, "and nobody else goes for it"
    other = opened(cache, {"a": dict.fromkeys(range(4), 0)})
    assert refusal(cache, fetch(large, 1)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    grown = fetch(other, 1, {"a": dict.fromkeys(range(4, 20), 0)})
    assert refusal(cache, grown) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert read(cache.context(fetch(small, 1), 12, 0, resolve)) == [("a", 0, 0)]
    assert cache.partition_count == 1


def test_an_idle_session_gives_way_after_two_minutes(cache):
    ids = [opened(cache, {"a": {0: 0}}, now_ms=n) for n in range(4)]
    cache.context(fetch(ids[0], 1), 12, EVICTION_MS, resolve).select([result()], EVICTION_MS)
    assert opened(cache, {"a": {0: 0}}, now_ms=EVICTION_MS + 1) == 0
    assert opened(cache, {"a": {0: 0}}, now_ms=EVICTION_MS + 2) > 0
    assert list(cache._sessions)[:3] == [ids[2], ids[3], ids[0]], "the least recently used is gone"
    assert cache.evictions == 1


def test_a_smaller_old_session_gives_way_to_a_larger_one_although_it_is_used(cache):
    sizes = {}
    for size in (2, 3, 4, 5):
        session_id = opened(cache, {"a": dict.fromkeys(range(size), 0)}, now_ms=0)
        sizes[session_id] = size
    now = EVICTION_MS + 5
    for session_id, size in sizes.items():
        cache.context(fetch(session_id, 1), 12, now, resolve).select([result()] * size, now)
    assert opened(cache, {"a": {0: 0, 1: 0}}, now_ms=now) == 0, "not larger than the smallest"
    assert opened(cache, {"a": {0: 0, 1: 0, 2: 0}}, now_ms=now) > 0
    assert min(sizes, key=sizes.get) not in cache._sessions


def as_follower(cache, size, now_ms=0):
    """A follower opens a session; its id."""
    request = fetch(topics={ID_A: dict.fromkeys(range(size), 0)})
    context = cache.context(request, 13, now_ms, resolve, follow=lambda: None)
    context.select([result()] * size, now_ms)
    return context.session_id


def use(cache, session_id, epoch, now_ms, version=13):
    context = cache.context(fetch(session_id, epoch), version, now_ms, resolve)
    context.select([result() for _ in context.requests], now_ms)


def test_a_consumer_never_evicts_a_follower_that_is_there(cache):
    """KIP-227: replication must not pay for what consumers do, however large or old."""
    followers = [as_follower(cache, 1) for _ in range(4)]
    now = EVICTION_MS + 5
    for session_id in followers:
        use(cache, session_id, 1, now)
    assert opened(cache, {"a": dict.fromkeys(range(50), 0)}, now_ms=now) == 0
    assert list(cache._sessions) == followers
    gone = 2 * EVICTION_MS + 6
    assert opened(cache, {"a": {0: 0}}, now_ms=gone) > 0, "none of them is there any more"


def test_a_follower_evicts_a_consumer_however_new_and_large(cache):
    old = as_follower(cache, 1)
    consumers = [opened(cache, {"a": dict.fromkeys(range(n), 0)}) for n in (30, 20, 40)]
    assert as_follower(cache, 2) > 0
    assert consumers[1] not in cache._sessions, "the smallest of them"
    assert as_follower(cache, 2) > 0
    assert as_follower(cache, 2) > 0
    assert old in cache._sessions
    assert as_follower(cache, 2) == 0, "followers of the last two minutes stay"
    assert cache.evictions == 3


def test_a_follower_evicts_a_smaller_one_that_is_old(cache):
    small = as_follower(cache, 1)
    large = [as_follower(cache, 5) for _ in range(3)]
    now = EVICTION_MS + 5
    for session_id in (small, *large):
        use(cache, session_id, 1, now)
    assert as_follower(cache, 1, now) == 0, "not larger than the smallest"
    assert as_follower(cache, 2, now) > 0
    assert small not in cache._sessions


def test_how_long_a_session_is_there_counts_until_its_last_use(cache):
    """Kafka decides it when a session is used: an old one that was used once is not evictable
    before it is stale."""
    for _ in range(4):
        opened(cache, {"a": {0: 0}}, now_ms=100)
    assert opened(cache, {"a": {0: 0, 1: 0}}, now_ms=100 + EVICTION_MS) == 0


def test_5000_sessions_stay_within_the_slots():
    """N-12."""
    cache = FetchSessionCache(1000)
    for number in range(5_000):
        opened(cache, {"a": {0: 0}}, now_ms=number * 1_000)
    assert len(cache) <= 1000


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 4), st.integers(0, 9), max_size=3),
            st.lists(st.integers(0, 4), max_size=2, unique=True),
            st.lists(st.integers(0, 2), min_size=5, max_size=5),
        ),
        max_size=12,
    )
)
def test_a_client_that_merges_the_answers_knows_what_full_fetches_would_tell(steps):
    """A model client: after each answer its high watermarks are those of the broker."""
    cache = FetchSessionCache(10)
    broker = dict.fromkeys(range(5), 0)
    known: dict[int, int] = {}
    wanted = {0: 0}
    context = cache.context(fetch(topics={"a": dict(wanted)}), 12, 0, resolve)
    session_id, epoch = None, 1
    for added, forgotten, growth in [({}, [], [0] * 5), *steps]:
        if session_id is not None:
            forgotten = [index for index in forgotten if index not in added]
            request = fetch(session_id, epoch, {"a": added} if added else {}, {"a": forgotten})
            epoch += 1
            wanted |= added
            for index in forgotten:
                wanted.pop(index, None)
                known.pop(index, None)
            context = cache.context(request, 12, 0, resolve)
            if not wanted:
                assert context.requests == []
                return
        for index, more in enumerate(growth):
            broker[index] += more
        assert {r.partition_index: r.fetch_offset for r in context.requests} == wanted
        results = [result(hw=broker[r.partition_index]) for r in context.requests]
        for request_, answer in context.select(results, 0):
            known[request_.partition_index] = answer.high_watermark
        session_id = context.session_id
        assert known == {index: broker[index] for index in wanted}
