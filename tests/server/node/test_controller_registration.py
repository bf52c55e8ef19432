"""A controller registers until the metadata shows it, one request at a time."""

from __future__ import annotations

from typing import Any

import pytest

from replication.controller import cluster
from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.metadata.image import (
    EMPTY_IMAGE,
    ControllerRegistration,
    Endpoint,
    MetadataDelta,
    MetadataImage,
)
from server.node.controller_registration import ControllerRegistrationManager
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import FeatureLevelRecord

OWN = ControllerRegistration(
    3, b"\x07" * 16, {"CONTROLLER": Endpoint("host", 9093, 0)}, dict(SUPPORTED_FEATURES)
)


class Active:
    """The active controller and a timer, both moved by hand."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []
        self.due: list[tuple[int, Any]] = []

    def submit(self, request: Any, on_complete: Any) -> None:
        self.asked.append((request, on_complete))

    def add(self, delay_ms: int, fn: Any) -> None:
        self.due.append((delay_ms, fn))

    def ring(self) -> int:
        delay_ms, fn = self.due.pop(0)
        fn()
        return delay_ms


def image_after(*records: Any, base: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    delta = MetadataDelta(base)
    delta.replay_all(records)
    return delta.apply(base.offset + len(records), 1, 1)


CURRENT = image_after(FeatureLevelRecord(name="metadata.version", feature_level=30))


@pytest.fixture
def active() -> Active:
    return Active()


@pytest.fixture
def manager(active: Active) -> ControllerRegistrationManager:
    return ControllerRegistrationManager(OWN, active, active)


def publish(manager: ControllerRegistrationManager, image: MetadataImage) -> None:
    manager.publish(MetadataDelta(image), image)


def test_what_it_asks_for_is_what_the_metadata_shows_then(
    manager: ControllerRegistrationManager, active: Active
) -> None:
    publish(manager, CURRENT)
    ((request, on_complete),) = active.asked
    result = cluster.register_controller(CURRENT, request)
    shown = image_after(*result.records, base=CURRENT)
    assert shown.controllers == {3: OWN}
    on_complete(result.response)
    publish(manager, shown)
    active.ring()
    assert len(active.asked) == 1, "it is registered: nothing more to ask"


def test_only_one_request_is_under_way(
    manager: ControllerRegistrationManager, active: Active
) -> None:
    for _ in range(5):
        publish(manager, CURRENT)
    assert len(active.asked) == 1


def test_a_refusal_is_asked_again_with_growing_pauses(
    manager: ControllerRegistrationManager, active: Active
) -> None:
    publish(manager, CURRENT)
    pauses = []
    for attempt in range(12):
        active.asked[attempt][1](KafkaError(ErrorCode.NOT_CONTROLLER))
        pauses.append(active.ring())
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (200, 10_000)
    assert len(active.asked) == 13


def test_a_metadata_version_without_controller_registrations_is_left_alone(
    manager: ControllerRegistrationManager, active: Active
) -> None:
    publish(manager, image_after(FeatureLevelRecord(name="metadata.version", feature_level=14)))
    assert active.asked == []
    publish(manager, CURRENT)
    assert len(active.asked) == 1, "the level was raised"


def test_a_registration_of_an_earlier_incarnation_is_replaced(
    manager: ControllerRegistrationManager, active: Active
) -> None:
    earlier = ControllerRegistration(3, b"\x01" * 16, {}, dict(SUPPORTED_FEATURES))
    publish(manager, image_after(earlier.to_record(), base=CURRENT))
    assert len(active.asked) == 1
