"""Who passes: super users, rules as they come and go, an operator's class, bad configurations."""

from __future__ import annotations

import tracemalloc

import pytest

from replication.metadata.image import EMPTY_IMAGE, MetadataDelta, delta_between
from server.config.kafka_config import ConfigError, KafkaConfig
from server.node import settings
from server.security.authorizer import (
    ALLOW_EVERYONE,
    CLASS_NAME,
    STANDARD,
    SUPER_USERS,
    NotReady,
    StandardAuthorizer,
)  # fmt: skip
from wire.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)

READ, TOPIC, GROUP = 3, 2, 3
ALICE = ("User:alice", "127.0.0.1", READ, TOPIC, "orders")


def record(number=1, name="orders", principal="User:alice", **values):
    fields = {
        "id": number.to_bytes(16, "big"), "resource_type": TOPIC, "resource_name": name,
        "pattern_type": 3, "principal": principal, "host": "*", "operation": READ,
        "permission_type": 3,
    }  # fmt: skip
    return AccessControlEntryRecord(**{**fields, **values})


def published(authorizer, image, *records):
    delta = MetadataDelta(image)
    delta.replay_all(records)
    new = delta.apply(image.offset + 1, 1, 0)
    authorizer.publish(delta, new)
    return new


def test_nobody_but_super_users_passes_before_the_rules_are_here():
    is_caught_up = False
    authorizer = StandardAuthorizer(
        ["User:admin"], allow_everyone=True, is_caught_up=lambda: is_caught_up
    )
    assert authorizer.authorize("User:admin", *ALICE[1:])
    with pytest.raises(NotReady):
        authorizer.authorize(*ALICE)
    image = published(authorizer, EMPTY_IMAGE, record())
    with pytest.raises(NotReady):
        authorizer.authorize(*ALICE)
    with pytest.raises(NotReady):
        authorizer.authorize_some(*ALICE[:4])
    is_caught_up = True
    published(authorizer, image)
    assert authorizer.authorize(*ALICE)


def test_rules_come_and_go_with_the_image():
    authorizer = StandardAuthorizer()
    image = published(authorizer, EMPTY_IMAGE, record())
    assert authorizer.authorize(*ALICE)
    assert not authorizer.authorize("User:bob", *ALICE[1:])
    image = published(authorizer, image, record(2, principal="User:bob"))
    assert authorizer.authorize("User:bob", *ALICE[1:])
    image = published(authorizer, image, RemoveAccessControlEntryRecord(id=record().id))
    assert not authorizer.authorize(*ALICE)
    assert authorizer.authorize("User:bob", *ALICE[1:])
    # A node that was left behind gets a snapshot: all at once.
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all([record(7)])
    new = delta.apply(90, 1, 0)
    authorizer.publish(delta_between(image, new), new)
    assert authorizer.authorize(*ALICE)
    assert not authorizer.authorize("User:bob", *ALICE[1:])


def test_what_cannot_be_read_lets_nobody_through():
    authorizer = StandardAuthorizer(allow_everyone=True)
    image = published(authorizer, EMPTY_IMAGE)
    assert authorizer.authorize(*ALICE)
    with pytest.raises(AttributeError):
        published(authorizer, image, record(host=None))
    with pytest.raises(NotReady):
        authorizer.authorize(*ALICE)


def test_on_some_and_on_a_name_are_not_mixed_up():
    authorizer = StandardAuthorizer()
    published(authorizer, EMPTY_IMAGE, record(resource_type=GROUP))
    asked = ("User:alice", "h", READ, GROUP)
    assert authorizer.authorize_some(*asked)
    for name in ("\0", "None", ""):
        assert not authorizer.authorize(*asked, name)


def test_names_of_clients_choice_are_not_remembered_for_ever():
    authorizer = StandardAuthorizer()
    published(authorizer, EMPTY_IMAGE, record())
    for number in range(70_000):
        authorizer.authorize(*ALICE[:4], str(number))
    assert authorizer._loaded is not None
    assert len(authorizer._loaded.answers) < 66_000


def test_long_names_are_not_remembered_at_all():
    """A group's id may have 32 KiB: 65,536 of them would be two gigabytes."""
    authorizer = StandardAuthorizer()
    published(authorizer, EMPTY_IMAGE, record())
    tracemalloc.start()
    try:
        for number in range(20):
            name = f"{number}".ljust(32_000, "x")
            assert not authorizer.authorize("User:alice", "127.0.0.1", READ, GROUP, name)
        del name
        assert tracemalloc.get_traced_memory()[0] < 60_000
    finally:
        tracemalloc.stop()


def loaded(**given):
    return settings.authorizer(
        KafkaConfig({key.replace("_", "."): value for key, value in given.items()}), lambda: True
    )


def test_configured():
    assert settings.authorizer(KafkaConfig({}), lambda: True) is None
    made = settings.authorizer(
        KafkaConfig(
            {
                CLASS_NAME: STANDARD,
                SUPER_USERS: "User:admin; User:CN=a,OU=b,O=c ;",
                ALLOW_EVERYONE: "TRUE",
            }
        ),
        lambda: True,
    )
    assert isinstance(made, StandardAuthorizer)
    assert made.authorize("User:CN=a,OU=b,O=c", *ALICE[1:])
    assert made.authorize("User:admin", *ALICE[1:])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({CLASS_NAME: "kafka.security.authorizer.AclAuthorizer"}, CLASS_NAME),
        ({CLASS_NAME: "json:JSONDecoder"}, CLASS_NAME),
        ({CLASS_NAME: "no.such.module:Class"}, CLASS_NAME),
        ({CLASS_NAME: "Word"}, CLASS_NAME),
        ({CLASS_NAME: STANDARD, SUPER_USERS: "admin"}, SUPER_USERS),
        ({CLASS_NAME: STANDARD, ALLOW_EVERYONE: "yes"}, ALLOW_EVERYONE),
        ({SUPER_USERS: "User:admin"}, SUPER_USERS),
        ({ALLOW_EVERYONE: "false"}, ALLOW_EVERYONE),
    ],
)
def test_what_cannot_be_obeyed_refuses_the_start(given, named):
    with pytest.raises(ConfigError) as refused:
        settings.authorizer(KafkaConfig(given), lambda: True)
    assert refused.value.name == named
    assert refused.value.value == given[named].lower() or refused.value.value == given[named]
    assert "expected" in str(refused.value) or "means nothing" in str(refused.value)


class OnlyReading:
    """An operator's class."""

    configs: dict[str, str] = {}

    def configure(self, configs):
        OnlyReading.configs = configs

    def authorize(self, principal, host, operation, resource_type, name):
        if name == "broken":
            raise RuntimeError
        return operation == READ or "truthy"


def test_a_class_of_the_operators():
    name = f"{__name__}:OnlyReading"
    for spelled in (name, name.replace(":", ".")):
        made = settings.authorizer(KafkaConfig({CLASS_NAME: spelled}), lambda: True)
        assert made is not None
        assert OnlyReading.configs == {CLASS_NAME: spelled}
        assert made.authorize(*ALICE)
        assert not made.authorize(*ALICE[:2], 4, TOPIC, "orders"), "only True is a yes"
        assert not made.authorize(*ALICE[:4], "broken")
        assert not made.authorize_some(*ALICE[:4])
        assert not made.keeps_acls


@pytest.mark.parametrize(
    ("super_users", "protocol", "has_peers", "is_told"),
    [
        ("User:admin", "PLAINTEXT", True, True),
        ("User:admin;User:ANONYMOUS", "PLAINTEXT", True, False),
        ("User:admin", "SSL", True, False),
        ("User:admin", "PLAINTEXT", False, False),
    ],
)
def test_nodes_that_would_lock_each_other_out_are_told(super_users, protocol, has_peers, is_told):
    config = KafkaConfig({
        CLASS_NAME: STANDARD,
        SUPER_USERS: super_users,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"CONTROLLER:{protocol},PLAINTEXT:PLAINTEXT",
    })  # fmt: skip
    notes = "\n".join(settings.notes(config, has_peers=has_peers))
    assert ("lacks User:ANONYMOUS" in notes) is is_told
