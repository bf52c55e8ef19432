"""StandardAuthorizer answers as Apache Kafka's class of this name, whatever the rules are.

Rules come and go between the questions; names are few and short, so that rules meet.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replication.metadata.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from server.security.authorizer import StandardAuthorizer
from testkit import jars
from testkit.quick_jvm import QUICK_JVM
from testkit.require import require_command
from wire.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)

QUESTIONS = 10_000
SEED = 17
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 2, 3, 4, 5, 6, 7
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
OPERATIONS = range(3, 16)
ALL = 2
USERS = ("User:a", "User:b", "User:CN=a,O=b", "Group:a", "User:root")
HOSTS = ("10.0.0.1", "10.0.0.2")


class Life:
    """An authorizer, and what Kafka's is told of it."""

    def __init__(self, rng: random.Random, told: list[str]) -> None:
        self.rng, self.told = rng, told
        everyone = rng.random() < 0.3
        self.authorizer = StandardAuthorizer(["User:root"], allow_everyone=everyone)
        told.append(f"new {str(everyone).lower()} User:root")
        self.image: MetadataImage = EMPTY_IMAGE
        self.rules: dict[int, dict[str, Any]] = {}
        self.number = 0
        self.types = rng.sample((TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER), 2)
        self.operations = rng.sample(OPERATIONS, 4)
        self.denies = rng.choice((0.0, 0.1, 0.5))
        self.change(rng.choice((0, 1, 3, 10, 40)), 0)

    def name(self) -> str:
        """Of few letters, none of which stands before `*`: asked for group `!a` beside a rule for
        `!b`, Kafka's class goes round in a circle for ever."""
        if self.rng.random() < 0.02:
            return "hardcode"
        return "".join(self.rng.choices("ab-~", (5, 3, 1, 1), k=self.rng.randint(1, 4)))

    def change(self, added: int, removed: int) -> None:
        records: list[Any] = []
        for _ in range(min(removed, len(self.rules))):
            number = self.rng.choice(list(self.rules))
            del self.rules[number]
            records.append(RemoveAccessControlEntryRecord(id=number.to_bytes(16, "big")))
            self.told.append(f"remove {number}")
        for _ in range(added):
            rule = self.rule()
            if rule in self.rules.values():  # which a controller writes no second time
                continue
            self.number += 1
            self.rules[self.number] = rule
            records.append(AccessControlEntryRecord(id=self.number.to_bytes(16, "big"), **rule))
            self.told.append(f"add {self.number} " + " ".join(map(str, rule.values())))
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.apply(self.image.offset + 1, 1, 0)
        self.authorizer.publish(delta, self.image)

    def rule(self) -> dict[str, Any]:
        rng = self.rng
        is_wild = rng.random() < 0.1
        return {
            "resource_type": rng.choice(self.types),
            "resource_name": "*" if is_wild else self.name(),
            "pattern_type": LITERAL if is_wild else rng.choice((LITERAL, PREFIXED)),
            "principal": rng.choice((*USERS[:4], "User:*")),
            "host": rng.choice(("*", *HOSTS)),
            "operation": rng.choice((*self.operations, ALL)),
            "permission_type": DENY if rng.random() < self.denies else ALLOW,
        }

    def ask(self) -> bool:
        rng = self.rng
        who, host = rng.choice(USERS), rng.choice(HOSTS)
        operation, kind = rng.choice(self.operations), rng.choice(self.types)
        if rng.random() < 0.2:
            self.told.append(f"some {who} {host} {operation} {kind}")
            return self.authorizer.authorize_some(who, host, operation, kind)
        name = self.name()
        self.told.append(f"ask {who} {host} {operation} {kind} {name}")
        return self.authorizer.authorize(who, host, operation, kind, name)


def answers(told: list[str]) -> Iterator[bool]:
    rng = random.Random(SEED)
    for _ in range(QUESTIONS // 50):
        life = Life(rng, told)
        for _ in range(5):
            yield from (life.ask() for _ in range(10))
            life.change(rng.randint(0, 5), rng.randint(0, 5))


def test_it_answers_as_apache_kafkas_does() -> None:
    require_command("java", "apt-get install openjdk-17-jre-headless")
    told: list[str] = []
    ours = list(answers(told))
    assert len(ours) == QUESTIONS
    assert 0.2 < sum(ours) / QUESTIONS < 0.8, "both happen"
    done = subprocess.run(
        [jars.java(), *QUICK_JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
         "-cp", f"{jars.libs()}/*", str(Path(__file__).with_name("Authorize.java"))],
        input="\n".join(told) + "\n", capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    theirs = [answer == "1" for answer in done.stdout.strip()]
    questions = [line for line in told if line.startswith(("ask", "some"))]
    differing = [
        f"{question}: ours {our}, theirs {their}"
        for question, our, their in zip(questions, ours, theirs, strict=True)
        if our != their
    ]
    assert differing == []
