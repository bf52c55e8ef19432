"""What a node as a whole makes of the keys of security, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.config.kafka_config import ConfigError, KafkaConfig
from server.node import quorum_config, settings
from server.node.node_security import NodeSecurity
from tests.server.security.security_support import Authority, nobody

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
LOGIN = f'{PLAIN} required username="admin" password="hunter2" user_admin="hunter2";'
CLUSTER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "CLIENT://localhost:9092,CTL://localhost:9093",
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CTL:SASL_PLAINTEXT",
    "controller.listener.names": "CTL",
    "controller.quorum.voters": "1@localhost:9093,2@localhost:9094,3@localhost:9095",
    "inter.broker.listener.name": "CLIENT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": LOGIN,
    "listener.name.ctl.plain.sasl.jaas.config": LOGIN,
}


def security(keys: dict[str, str | None]) -> NodeSecurity:
    config = KafkaConfig({key: text for key, text in keys.items() if text is not None})
    return NodeSecurity(config, quorum_config.check(config), nobody)


def test_a_node_knows_its_listeners_and_is_a_client_of_the_others() -> None:
    made = security({**CLUSTER})
    assert not made.is_open
    assert made.towards_brokers is not None
    assert made.towards_controllers is not None
    assert made.towards_brokers.login == ("admin", "hunter2")


def test_a_node_may_have_a_token_for_the_others(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    login = f'{module} required unsecuredValidatorRequiredScope="";'
    keys = {**CLUSTER, "sasl.oauthbearer.token.endpoint.url": (tmp_path / "jwt").as_uri()}
    (tmp_path / "jwt").write_text("a.b.c\n")
    for name in ("client", "ctl"):
        keys[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = login
    for name in (
        "enabled.mechanisms",
        "mechanism.inter.broker.protocol",
        "mechanism.controller.protocol",
    ):
        keys[f"sasl.{name}"] = "OAUTHBEARER"
    made = security({**keys})
    for peers in (made.towards_brokers, made.towards_controllers):
        assert peers is not None
        assert peers.token is not None
        assert peers.token() == "a.b.c"


def test_where_everything_is_plaintext_nothing_is_done() -> None:
    assert security({"listeners": "PLAINTEXT://localhost:9092"}).is_open


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sasl.enabled.mechanisms": None}, "sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "sasl.enabled.mechanisms"),
        ({"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}, "listener.name.client.oauthbearer.sasl"),
        ({"sasl.mechanism.inter.broker.protocol": None}, "sasl.mechanism.inter.broker.protocol"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "sasl.mechanism.inter"),
        ({"sasl.mechanism.controller.protocol": None}, "sasl.mechanism.controller.protocol"),
        ({"listener.name.client.plain.sasl.jaas.config": None}, "listener.name.client.plain"),
        (
            {
                "listener.name.client.plain.sasl.jaas.config": None,
                "sasl.jaas.config": LOGIN,
            },
            "listener.name.client.plain",
        ),
        (
            {"listener.name.ctl.plain.sasl.jaas.config": f'{PLAIN} required user_a="hunter2";'},
            "listener.name.ctl.plain",
        ),
        (
            {"listener.name.client.plain.sasl.jaas.config": f"{SCRAM} required;"},
            "listener.name.client.plain",
        ),
        (
            {"listener.name.client.plain.sasl.jaas.config": f"{LOGIN} {LOGIN}"},
            "listener.name.client.plain",
        ),
        ({"listener.security.protocol.map": "CLIENT:SSL,CTL:SASL_PLAINTEXT"}, "ssl.keystore"),
        ({"listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT"}, "listener.security.protocol"),
        ({"listener.name.klient.ssl.client.auth": "required"}, "listener.name.klient"),
        ({"principal.builder.class": "com.example.X"}, "principal.builder.class"),
        ({"listener.name.client.sasl.server.callback.handler.class": "com.example.X"},
         "listener.name.client.sasl.server"),
        ({"listener.name.client.plain.sasl.server.callback.handler.class": "com.example.X"},
         "listener.name.client.plain.sasl.server"),
        ({"sasl.login.class": "com.example.X"}, "sasl.login.class"),
        ({"ssl.engine.factory.class": "com.example.X"}, "ssl.engine.factory.class"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules"),
    ],
)  # fmt: skip
def test_what_cannot_be_obeyed_refuses_the_start(
    changes: dict[str, str | None], named: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        security({**CLUSTER, **changes})
    assert failed.value.name.startswith(named)
    assert "hunter2" not in str(failed.value)


def test_scram_cannot_elect_a_first_controller() -> None:
    keys = {
        **CLUSTER,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        **{
            f"listener.name.{name}.scram-sha-256.sasl.jaas.config": (
                f'{SCRAM} required username="admin" password="hunter2";'
            )
            for name in ("client", "ctl")
        },
    }
    with pytest.raises(ConfigError, match="expected PLAIN"):
        security({**keys})


def test_who_is_no_user_has_one_salt_wherever_he_asks() -> None:
    """Two listeners, two nodes, a restart: a user's salt stays the same, so must a stranger's."""
    names = ("ONE", "TWO")
    keys = {
        "listeners": ",".join(f"{name}://localhost:0" for name in names),
        "listener.security.protocol.map": ",".join(f"{name}:SASL_PLAINTEXT" for name in names),
        "inter.broker.listener.name": "ONE",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        **{
            f"listener.name.{name.lower()}.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;"
            for name in names
        },
    }
    config = KafkaConfig(keys)

    def salts(users: dict[Any, Any]) -> set[bytes]:
        made = NodeSecurity(config, quorum_config.check(config), nobody, users=lambda: users)
        servers = [
            one._new_server(one._values(), "SCRAM-SHA-256")() for one in made._listeners.values()
        ]
        assert len(servers) == 2
        return {one.evaluate(b"n,,n=stranger,r=theirs").split(b",")[1] for one in servers}

    def user(server_key: bytes) -> SimpleNamespace:
        return SimpleNamespace(server_key=server_key)

    assert len(salts({})) == 1
    known = {("bob", 1): user(b"b" * 32), ("carol", 1): user(b"c" * 32)}
    assert salts(known) == salts(dict(known))
    assert salts(known) == salts({**known, ("dan", 2): user(b"d" * 32)})
    assert salts(known) != salts({**known, ("alice", 2): user(b"a" * 32)})


def test_users_may_stand_in_a_jaas_file_that_kafka_opts_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(f"ctl.KafkaServer {{ {LOGIN} }};\nKafkaServer {{ {LOGIN} }};")
    monkeypatch.setenv("KAFKA_OPTS", f"-Xmx1g -Djava.security.auth.login.config={path} -Da=b")
    bare = {key: text for key, text in CLUSTER.items() if "jaas" not in key}
    assert not security({**bare}).is_open
    path.write_text("KafkaServer {")
    with pytest.raises(ConfigError, match="JAAS file"):
        security({**bare})


def test_stores_are_checked_before_a_change_of_them_is_taken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    store = authority.key_store("s.pem", "localhost", common_name="broker")
    other = authority.key_store("o.pem", "localhost", common_name="another")
    keys = {"listeners": "SSL://localhost:9092", **authority.tls_keys(store)}
    config = KafkaConfig(keys)
    made = NodeSecurity(config, quorum_config.check(config), nobody)
    name = "listener.name.ssl.ssl.keystore.location"
    made.check_reload(config.with_dynamic({name: str(store)}, {}))
    for wrong in (str(other), "/not/there"):
        with pytest.raises(ConfigError):
            made.check_reload(config.with_dynamic({name: wrong}, {}))


def test_a_store_that_went_bad_holds_up_no_change_of_anything_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS-21: the change is taken, only the log tells of the store."""
    authority = Authority(tmp_path)
    store = authority.key_store("s.pem", "localhost", common_name="broker")
    config = KafkaConfig({"listeners": "SSL://localhost:9092", **authority.tls_keys(store)})
    made = NodeSecurity(config, quorum_config.check(config), nobody)
    config.checks.append(made.check_reload)
    store.write_bytes(b"half of a sto")
    assert settings.apply_dynamic(config, {}, {"log.retention.ms": "7"}) == {"log.retention.ms"}
    name = "listener.name.ssl.ssl.keystore.location"
    with pytest.raises(ConfigError):  # who names the store again is told what is wrong with it
        config.with_dynamic({}, {}, named=[name])
    made.reload()
    assert "the old certificate stays" in caplog.text
