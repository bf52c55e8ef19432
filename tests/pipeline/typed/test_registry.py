"""What is asked of a schema registry, and what its answers and its silence become."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest

from pipeline.typed.registry import Registry, RegistryError, Schema
from testkit.clients.fake_registry import fake_registry


def test_the_latest_version_of_a_subject_and_a_schema_by_id_asked_for_once() -> None:
    with fake_registry() as fake:
        fake.register("orders-value", {"schema": '"int"'})
        number = fake.register("orders-value", {"schema": '"long"'})
        registry = Registry(fake.url)
        assert registry.latest("orders-value") == Schema('"long"', "AVRO", (), number)
        assert registry.latest("nothing-value") is None
        assert registry.by_id(99) is None
        before = len(fake.asked)
        assert registry.by_id(number) == Schema('"long"', "AVRO", (), number)
        assert pickle.loads(pickle.dumps(registry)).by_id(number) is not None  # noqa: S301
        assert len(fake.asked) == before


def test_what_a_schema_refers_to_comes_before_it() -> None:
    with fake_registry() as fake:
        fake.register("leaf", {"schema": "L", "schemaType": "JSON"})
        fake.register("middle", {"schema": "M", "schemaType": "JSON", "references": [
            {"name": "leaf.json", "subject": "leaf", "version": 1}]})  # fmt: skip
        fake.register("root", {"schema": "R", "schemaType": "JSON", "references": [
            {"name": "middle.json", "subject": "middle", "version": 1}]})  # fmt: skip
        found = Registry(fake.url).latest("root")
        assert found is not None
        assert found.imports == (("leaf.json", "L"), ("middle.json", "M"))
        fake.register("lost", {"schema": "X", "references": [
            {"name": "x", "subject": "nothing", "version": 3}]})  # fmt: skip
        with pytest.raises(RegistryError, match="no nothing version 3"):
            Registry(fake.url).latest("lost")


def test_user_and_password_are_sent_and_not_shown() -> None:
    with fake_registry() as fake:
        url = fake.url.replace("://", "://me:s%40cret@")
        Registry(url).check()
        assert fake.authorization == "Basic " + base64.b64encode(b"me:s@cret").decode()
        fake.failing = 401
        with pytest.raises(RegistryError, match="answers 401") as refused:
            Registry(url).check()
        assert "cret" not in str(refused.value)


def test_a_registry_that_does_not_answer_is_an_error_and_the_next_one_is_asked() -> None:
    with fake_registry() as gone:
        pass
    with pytest.raises(RegistryError, match="does not answer"):
        Registry(gone.url, tries=1).by_id(1)
    with fake_registry() as fake:
        fake.register("a", {"schema": '"int"'})
        assert Registry(f"{gone.url},{fake.url}", tries=1).by_id(1) is not None
        fake.failing = 500
        with pytest.raises(RegistryError, match="answers 500"):
            Registry(fake.url, tries=1).by_id(1)


def test_what_answers_with_something_else_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "types").write_text("<html>")
    with pytest.raises(RegistryError, match="is no schema registry"):
        Registry(tmp_path.as_uri()).check()
