"""Hashes of topics are worked out once for each topic, however many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from server.coordinator.consumer import topics
from server.coordinator.consumer.topics import TopicHashes, ids_of, ids_of_each, topic_hash


def image_of(known: dict[str, TopicImage]) -> MetadataImage:
    return replace(EMPTY_IMAGE, topics_by_name=known)


def test_a_topic_is_hashed_once_and_forgotten_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[str] = []

    def counted(topic: TopicImage, image: MetadataImage) -> int:
        hashed.append(topic.name)
        return topic_hash(topic, image)

    monkeypatch.setattr(topics, "topic_hash", counted)
    names = [f"t{i}" for i in range(12_000)]
    known = {name: TopicImage(name, name.encode().ljust(16), {}) for name in names}
    hashes = TopicHashes()
    first = hashes(names, image_of(known))
    assert len(hashed) == len(names)
    assert hashes(names, image_of({**known, "other": replace(known["t0"], name="other")})) == first
    assert len(hashed) == len(names), "a new topic makes none of the others new"
    hashes(["t0"], image_of({"t0": known["t0"]}))
    assert list(hashes._known) == ["t0"]


def test_topics_that_several_members_name_are_looked_up_once() -> None:
    topic, other = TopicImage("t", b"t" * 16, {}), TopicImage("o", b"o" * 16, {})
    image = image_of({"t": topic, "o": other})
    named = [
        ("a", frozenset("t")),
        ("b", frozenset("to")),
        ("c", frozenset("t")),
        ("d", frozenset("x")),
    ]
    found = ids_of_each(named, image)
    assert found == {id_: ids_of(names, image) for id_, names in named}
    assert found["a"] is found["c"]
