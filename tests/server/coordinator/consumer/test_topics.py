"""Hashes of topics are worked out once for each topic, however many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from server.coordinator.consumer import topics
from server.coordinator.consumer.topics import TopicHashes, topic_hash


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
