from __future__ import annotations

import pytest

from barnabas.client_commands import topics
from server.commands.outcomes import UserError


def test_a_topic_id_is_written_as_kafka_writes_it() -> None:
    """It is looked for in logs, in `partition.metadata` and by Kafka's tools."""
    topic = {
        "name": "t",
        "topic_id": "13b36307-4476-4f98-bb8a-2ae69eb514d6",
        "is_internal": False,
        "partitions": [],
    }
    assert topics._topic(topic, {})["id"] == "E7NjB0R2T5i7iirmnrUU1g"


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (40, ["Invalid value x.\nSee b"], "INVALID_CONFIG: Invalid value x. See b"),
        (29, [], "TOPIC_AUTHORIZATION_FAILED: "),
    ],
)
def test_a_config_that_is_refused_is_told_by_kafkas_name_of_the_error(
    code: int, words: list[str], told: str
) -> None:
    from kafka.errors import for_code

    class Admin:
        def alter_configs(self, _resources: object, **_: object) -> dict[str, dict[str, str]]:
            return {"topic": {"t": str(for_code(code)(*words))}}

    with pytest.raises(UserError, match=f"^topic 't': {told}"):
        topics.alter_configs(Admin(), "TOPIC", "t", {"k": "v"})
