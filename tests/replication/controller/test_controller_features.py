"""UpdateFeatures: which levels may be set, by whom they must be supported, what goes with them."""

from __future__ import annotations

from typing import Any

import pytest

from replication.metadata.image import ControllerRegistration, VersionRange
from tests.replication.controller_support import Cluster
from wire.errors import ErrorCode, KafkaError

MV, ELR, KRAFT = "metadata.version", "eligible.leader.replicas.version", "kraft.version"
TV = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def cluster_at(level: int, elr: int = 0, **config: Any) -> Cluster:
    features = {MV: level, ELR: elr} if elr else {MV: level}
    made = Cluster(features=features, **config)
    made.start_broker()
    return made


@pytest.mark.parametrize(
    ("level", "update", "because"),
    [
        (30, (MV, 29, UPGRADE), "without setting the upgrade type"),
        (30, (MV, 29, SAFE), "might delete metadata information"),
        (30, (MV, 29, UNSAFE), "Unsafe metadata downgrade is not supported"),
        (25, (MV, 30, SAFE), "Can't downgrade to a newer version."),
        (25, (MV, 31, UPGRADE), "Local controller 1 only supports versions 7-30"),
        (25, (MV, 6, SAFE), "Local controller 1 only supports versions 7-30"),
        (25, (MV, -1, SAFE), "cannot be less than 0"),
        (25, (MV, 26, 0), "does not support the given upgrade type"),
        (25, (MV, 26, 9), "does not support the given upgrade type"),
        (25, ("made.up", 1, UPGRADE), "Local controller 1 does not support this feature."),
        (25, ("streams.version", 2, UPGRADE), "only supports versions 0-1"),
        (25, (ELR, 2, UPGRADE), "only supports versions 0-1"),
        (25, (TV, 3, UPGRADE), "only supports versions 0-2"),
        (22, (ELR, 1, UPGRADE), "depends on metadata.version level 23"),
        (25, (KRAFT, 0, SAFE), "Can't downgrade the version of this feature."),
        (25, (KRAFT, 2, UPGRADE), "only supports versions 0-1"),
        (25, (KRAFT, 0, UPGRADE), "without setting the upgrade type"),
    ],
)
def test_a_level_that_cannot_be_set_is_refused_with_its_reason(
    level: int, update: tuple[str, int, int], because: str
) -> None:
    made = cluster_at(level)
    count = len(made.log)
    answer = made.update_features(update)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert because in answer.error_message
    assert answer.error_message.startswith("The update failed for all features since")
    assert len(made.log) == count


def test_a_voter_that_has_not_registered_may_be_of_an_older_release() -> None:
    """It would come back to records that it cannot read."""
    made = cluster_at(25)
    answer = made.update_features((MV, 30, UPGRADE), voters=(1, 2))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "controller 2 has not registered, and may not support" in answer.error_message
    made.apply([ControllerRegistration(2, bytes(16), {}, {MV: VersionRange(7, 30)}).to_record()])
    assert made.update_features((MV, 30, UPGRADE), voters=(1, 2)).error_code == 0
    before = cluster_at(14)  # controllers cannot register yet
    assert before.update_features((MV, 25, UPGRADE), voters=(1, 2)).error_code == 0


@pytest.mark.parametrize(
    ("level", "update"),
    [
        (25, (MV, 30, UPGRADE)),
        (29, (MV, 24, SAFE)),
        (29, (MV, 23, UNSAFE)),
        (29, (MV, 29, UPGRADE)),
        (25, (ELR, 1, UPGRADE)),
        (25, (KRAFT, 1, UPGRADE)),
        (25, (TV, 1, UPGRADE)),
        (25, (TV, 2, UPGRADE)),
    ],
)
def test_a_level_that_can_be_set_is_what_the_cluster_uses_then(
    level: int, update: tuple[str, int, int]
) -> None:
    made = cluster_at(level)
    assert made.update_features(update).error_code == 0
    if update[0] != KRAFT:  # it stands in the quorum's own records
        assert made.image.feature(update[0]) == update[1]


def test_transactions_go_back_to_an_older_version_and_forth_while_running() -> None:
    made = Cluster(features={MV: 30, TV: 2})
    made.start_broker()
    assert made.update_features((TV, 1, UPGRADE)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    for level, kind in ((1, SAFE), (0, SAFE), (2, UPGRADE), (0, UNSAFE), (1, UPGRADE)):
        assert made.update_features((TV, level, kind)).error_code == 0
        assert made.image.feature(TV) == level


def test_the_quorum_raises_kraft_version_and_a_record_behind_it_is_waited_for() -> None:
    made = cluster_at(25)
    asked: list[tuple[int, bool]] = []

    def ask(*updates: tuple[str, int, int], validate_only: bool = False) -> tuple[int, list[Any]]:
        count = len(made.log)
        answer = made.update_features(
            *updates,
            validate_only=validate_only,
            kraft_version=0,
            upgrade_kraft_version=lambda *words: asked.append(words),
        )
        return answer.error_code, made.log[count:]

    up, bad = (KRAFT, 1, UPGRADE), (MV, 31, UPGRADE)
    assert ask(up, validate_only=True) == (0, [])
    assert ask(up, bad)[0] == ErrorCode.INVALID_UPDATE_VERSION, "all or none"
    assert asked == [(1, True)]
    error, written = ask(up)
    assert (error, len(written)) == (0, 1)
    assert asked == [(1, True), (1, False)]
    assert made.image.feature(KRAFT) == 0


def test_what_the_quorum_refuses_is_told() -> None:
    made = cluster_at(25)

    def refuse(_level: int, _validate_only: bool) -> None:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "not all of the voters support it")

    answer = made.update_features(
        (KRAFT, 1, UPGRADE), (ELR, 1, UPGRADE), kraft_version=0, upgrade_kraft_version=refuse
    )
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "not all of the voters support it" in answer.error_message
    assert made.image.feature(ELR) == 0


def test_all_updates_are_made_or_none() -> None:
    made = cluster_at(25)
    answer = made.update_features((ELR, 1, UPGRADE), (MV, 31, UPGRADE))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert made.image.feature(ELR) == 0
    assert made.update_features((MV, 30, UPGRADE), (ELR, 1, UPGRADE)).error_code == 0
    assert (made.image.feature(MV), made.image.feature(ELR)) == (30, 1)


def test_a_level_may_depend_on_another_update_of_the_same_request() -> None:
    made = cluster_at(22)
    assert made.update_features((ELR, 1, UPGRADE), (MV, 23, UPGRADE)).error_code == 0


def test_of_a_feature_that_is_named_twice_the_last_update_counts() -> None:
    made = Cluster()
    made.start_broker()
    assert made.image.feature("group.version") == 1
    answer = made.update_features(("group.version", 0, 2), ("group.version", 1, 1))
    assert answer.error_code == 0
    assert made.image.feature("group.version") == 1


def test_validate_only_says_the_same_and_writes_nothing() -> None:
    made = cluster_at(25)
    count = len(made.log)
    assert made.update_features((ELR, 1, UPGRADE), validate_only=True).error_code == 0
    refused = made.update_features((MV, 31, UPGRADE), validate_only=True)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert len(made.log) == count


def test_every_node_must_support_the_level() -> None:
    made = cluster_at(25)
    old = ControllerRegistration(2, b"\x02" * 16, {}, {MV: VersionRange(7, 27)})
    made.apply([old.to_record()])
    answer = made.update_features((MV, 28, UPGRADE))
    assert "Controller 2 only supports versions 7-27" in answer.error_message
    assert made.update_features((MV, 27, UPGRADE)).error_code == 0
    feature = type(made).register.__globals__["BrokerRegistrationRequest"].Feature
    made.register(7, features=[feature(name=MV, min_supported_version=7, max_supported_version=27)])
    answer = made.update_features((ELR, 1, UPGRADE))
    assert "Broker 7 does not support this feature." in answer.error_message


@pytest.mark.parametrize(("version", "named"), [(0, 1), (1, 1), (2, 0)])
def test_older_versions_have_a_result_per_feature(version: int, named: int) -> None:
    made = cluster_at(25)
    answer = made.update_features((ELR, 1, UPGRADE), version=version)
    assert [(r.feature, r.error_code) for r in answer.results] == [(ELR, 0)] * named


def test_eligible_leader_replicas_bring_one_min_insync_replicas_for_all() -> None:
    from wire.messages.metadata_records import ConfigRecord

    made = cluster_at(25, min_insync_replicas=2)
    made.apply(
        [ConfigRecord(resource_type=4, resource_name="1", name="min.insync.replicas", value="3")]
    )
    made.update_features((ELR, 1, UPGRADE))
    assert made.image.config(4, "") == {"min.insync.replicas": "2"}
    assert made.image.config(4, "1") == {}
