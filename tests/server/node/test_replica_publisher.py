"""B-3: a broker acts on metadata only from its own registration on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from replication.metadata.image import MetadataDelta, MetadataImage
from server.node.replica_publisher import ReplicaPublisher
from tests.server.handler_support import broker_registration, image_of

OLD, NEW = b"o" * 16, b"n" * 16


def image(incarnation_id: bytes | None, offset: int) -> MetadataImage:
    brokers = [broker_registration(2)]
    if incarnation_id is not None:
        brokers.append(replace(broker_registration(1), incarnation_id=incarnation_id))
    return image_of(brokers=brokers, offset=offset)


def publisher() -> tuple[ReplicaPublisher, list[tuple[Any, MetadataImage]]]:
    applied: list[tuple[Any, MetadataImage]] = []
    manager: Any = SimpleNamespace(apply_delta=lambda *given: applied.append(given))
    return ReplicaPublisher(manager, 1, NEW), applied


def test_nothing_is_led_by_what_the_metadata_says_of_the_process_before() -> None:
    replicas, applied = publisher()
    for number, incarnation_id in enumerate((None, OLD, OLD)):
        seen = image(incarnation_id, number)
        replicas.publish(MetadataDelta(seen), seen)
    assert not applied
    assert not replicas.is_open


def test_the_first_image_with_our_registration_is_handed_on_as_a_whole() -> None:
    replicas, applied = publisher()
    before, registered = image(OLD, 5), image(NEW, 6)
    replicas.publish(MetadataDelta(before), before)
    replicas.publish(MetadataDelta(before), registered)
    ((delta, given),) = applied
    assert given is registered
    assert set(delta.changed_brokers) == {1, 2}, "all that is there, not what changed last"


def test_later_images_are_handed_on_as_they_come_whatever_is_registered_then() -> None:
    replicas, applied = publisher()
    registered, unregistered = image(NEW, 6), image(None, 7)
    replicas.publish(MetadataDelta(registered), registered)
    change = MetadataDelta(registered)
    replicas.publish(change, unregistered)
    assert applied[-1] == (change, unregistered)


def test_the_controller_is_told_how_far_the_replicas_are_not_what_has_arrived() -> None:
    replicas, applied = publisher()
    seen: list[int] = []
    registered = image(NEW, 6)
    replicas._replica_manager = SimpleNamespace(  # type: ignore[assignment]
        apply_delta=lambda *given: seen.append(replicas.image.offset)
    )
    replicas.publish(MetadataDelta(registered), registered)
    assert seen == [-1]
    assert replicas.image is registered
    assert not applied
