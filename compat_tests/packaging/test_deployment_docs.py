"""docs/deployment.md says nothing that the program would refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from server.config.environment import read_environment
from server.config.kafka_config import KafkaConfig, catalogue
from server.node.quorum_config import check

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def barnabas(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "barnabas", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_variable_is_one_that_the_broker_obeys_or_ignores_by_name() -> None:
    variables = sorted(set(re.findall(r"\bKAFKA_[A-Z0-9_]+\b", TEXT)))
    assert len(variables) >= 10
    for variable in variables:
        environment = read_environment({variable: ""})
        unknown = set(environment.values) - set(catalogue().broker)
        assert not unknown, variable
        assert environment.values or environment.notes, variable


def test_the_server_properties_pass_check_config(tmp_path: Path) -> None:
    assert len(blocks("properties")) == 2
    for properties in blocks("properties"):
        file = tmp_path / "server.properties"
        file.write_text(properties)
        done = barnabas("check-config", str(file))
        assert done.returncode == 0, done.stderr
        assert "no effect" not in done.stdout


def test_the_containers_of_a_cluster_make_one_quorum() -> None:
    (compose,) = (block for block in blocks("yaml") if "CLUSTER_ID" in block)
    common = dict(re.findall(r"^    (KAFKA_\w+): \"?([^\"\n]*)", compose, re.MULTILINE))
    nodes = re.findall(r"environment: \{(.*)\}", compose)
    assert len(nodes) == 3
    for number, text in enumerate(nodes, 1):
        own = dict(re.findall(r'(KAFKA_\w+): "([^"]*)"', text))
        quorum = check(KafkaConfig(dict(read_environment(common | own).values)))
        assert quorum.node_id == number
        assert [voter.node_id for voter in quorum.voters] == [1, 2, 3]
        assert quorum.voters[number - 1].host in own["KAFKA_ADVERTISED_LISTENERS"]


def test_the_commands_take_the_flags_that_are_shown() -> None:
    (unit,) = blocks("ini")
    (start,) = re.findall(r"^ExecStart=\S*/barnabas (.*)$", unit, re.MULTILINE)
    commands = re.findall(r"^\$ (?:docker exec barnabas )?barnabas (.*)$", TEXT, re.MULTILINE)
    assert len(commands) >= 2
    for line in [start, *commands]:
        # A flag that nothing knows is refused after all others were read: nothing runs.
        done = barnabas(*line.split(), "--no-such-flag")
        assert "unrecognized arguments: --no-such-flag; see" in done.stderr, done.stderr


def test_the_paths_are_the_images() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for path in ("/var/lib/barnabas", "/etc/barnabas/server.properties", "10001:10001"):
        assert path in TEXT
        assert path in dockerfile


def test_the_links_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            assert (ROOT / "docs" / link).is_file(), link
