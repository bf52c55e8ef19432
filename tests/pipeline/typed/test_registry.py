"""What is asked of a schema registry, and what its answers and its silence become."""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.parametrize("code", [408, 429])
def test_a_registry_that_has_too_much_to_do_is_asked_again(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_registry() as fake:
        fake.register("a", {"schema": '"int"'})
        fake.failing = code
        monkeypatch.setattr("time.sleep", lambda _: setattr(fake, "failing", 0))
        assert Registry(fake.url, tries=2).by_id(1) is not None
        fake.failing = code
        with pytest.raises(RegistryError, match=f"answers {code}"):
            Registry(fake.url, tries=1).by_id(2)


def test_what_answers_with_something_else_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "types").write_text("<html>")
    with pytest.raises(RegistryError, match="is no schema registry"):
        Registry(tmp_path.as_uri()).check()


@contextmanager
def program(status: int, body: bytes, location: str | None = None) -> Iterator[str]:
    """The address of one that answers everything alike, below `location` if there is one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location + self.path)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"5"])
def test_a_program_that_has_nothing_there_is_no_registry_without_the_subject(body: bytes) -> None:
    """All values would be archived undecoded, as of subjects that the registry has not."""
    with program(404, body) as url:
        with pytest.raises(RegistryError, match="answers 404 Not Found; check --registry"):
            Registry(url, tries=1).check()
        with pytest.raises(RegistryError, match="answers 404"):
            Registry(url, tries=1).latest("orders-value")


def test_a_redirect_is_followed_and_user_and_password_go_to_nobody_else() -> None:
    with fake_registry() as fake:
        fake.register("a", {"schema": '"int"'})
        with program(307, b"", location=fake.url) as url:
            registry = Registry(url.replace("://", "://me:secret@"), tries=1)
            assert registry.by_id(1) == Schema('"int"', "AVRO", (), 1)
        assert fake.authorization is None


@pytest.mark.parametrize("body", [b"[]", b'{"id": "x"}', b'{"schema": 5}', b'"schema"'])
def test_an_answer_that_no_registry_gives_is_told(body: bytes) -> None:
    with program(200, body) as url:
        registry = Registry(url, tries=1)
        with pytest.raises(RegistryError, match="no schema registry answers without 'id'"):
            registry.latest("orders-value")
        with pytest.raises(RegistryError, match="no schema registry answers without 'schema'"):
            registry.by_id(1)
