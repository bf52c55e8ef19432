"""A shard with share groups, and what it asked for."""

from __future__ import annotations

from typing import Any

from server.coordinator.group_config import ShareConfig
from server.coordinator.group_messages import Client
from server.coordinator.share_groups.protocol import ShareOutside
from server.coordinator.share_groups.topics import SharedTopic
from tests.server.coordinator.modern_world import FIRST_ID, ModernWorld, image_of
from wire.messages.share import ShareGroupHeartbeatRequest

TOPIC_ID = FIRST_ID
CLIENT = Client("c", "/h", 1)


class ShareWorld(ModernWorld):
    """See the module. `t` has two partitions."""

    def __init__(self) -> None:
        self.config = ShareConfig()
        self.asked: list[Any] = []
        """(group, epoch, starts) of state that is to be begun."""
        super().__init__(image_of(t=2))

    def _shares(self) -> ShareOutside:
        return ShareOutside(
            lambda: self.image, lambda _: self.config, lambda *asked: self.asked.append(asked)
        )

    @property
    def group(self) -> Any:
        return self.shard.share.groups["g"]

    def beat(self, member: str, epoch: int, *topics: str, **fields: Any) -> Any:
        """The answer of a heartbeat."""
        request = ShareGroupHeartbeatRequest(
            **{
                "group_id": "g",
                "member_id": member,
                "member_epoch": epoch,
                "subscribed_topic_names": list(topics) or None,
                **fields,
            }
        )
        return self.play(self.shard.share.heartbeat(request, CLIENT))

    def initialized(self, name: str = "t", *partitions: int) -> None:
        """State was begun."""
        topic = self.image.topics_by_name[name]
        topics = {topic.topic_id: SharedTopic(name, frozenset(partitions or topic.partitions))}
        self.play(self.shard.share.initialized("g", topics))


def assigned(answer: Any) -> list[int] | None:
    """Partitions of the one topic; None: nothing new is told."""
    if answer.assignment is None:
        return None
    return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]
