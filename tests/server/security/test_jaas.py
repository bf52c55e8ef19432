"""JAAS texts as Kafka's users write them."""

from __future__ import annotations

import pytest

from server.security.jaas import JaasError, parse_jaas, parse_jaas_file

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"{PLAIN} required username='a' password='b c';", {"username": "a", "password": "b c"}),
        (f'{PLAIN} required password="a\\"b\\\\c;d";', {"password": 'a"b\\c;d'}),
        (f'{PLAIN} Required\n  user_x = "1" // note\n  /* and */ user_y="2" ;', None),
        (f"{PLAIN} required;", {}),
        (f"{PLAIN} optional debug=true;", {"debug": "true"}),
        (f'{PLAIN} required "user_a.b@c"="p";', {"user_a.b@c": "p"}),
    ],
)
def test_one_module_with_its_options(text: str, options: dict[str, str] | None) -> None:
    module = parse_jaas(text)
    assert module.name == PLAIN
    assert module.options == ({"user_x": "1", "user_y": "2"} if options is None else options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLAIN,
        f"{PLAIN} required",
        f'{PLAIN} username="secret";',
        f'{PLAIN} required username="secret"',
        f"{PLAIN} required iterations=4096;",
        f'{PLAIN} required username "secret";',
        f'{PLAIN} required username="secret;',
        f'{PLAIN} required username="secret"; {PLAIN} required;',
        f'{PLAIN} must username="secret";',
        f"{PLAIN} required password=\x00secret;",
    ],
)
def test_what_cannot_be_meant_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(JaasError) as failed:
        parse_jaas(text)
    assert "secret" not in str(failed.value)


def test_a_file_has_sections() -> None:
    text = f'// users\nKafkaServer {{ {PLAIN} required user_a="1"; }};\nClient {{ A.B required; }};'
    sections = parse_jaas_file(text)
    assert sections["KafkaServer"][0].options == {"user_a": "1"}
    assert [module.name for module in sections["Client"]] == ["A.B"]
    for broken in ("A {", "A { };A { };", "A { x required; }", "A x required;"):
        with pytest.raises(JaasError):
            parse_jaas_file(broken)


def test_options_are_not_shown() -> None:
    assert "secret" not in repr(parse_jaas(f'{PLAIN} required password="secret";'))
