"""A schema registry for tests: what producers and readers ask of Confluent's, from memory."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """Schemas by id, and their ids by subject and version (1, 2, ...)."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        """Paths of all requests."""
        self.failing: int | None = None
        """A status that everything is answered with."""
        self.broken: set[int] = set()
        """Ids of schemas that cannot be had: 500."""
        self.url = ""
        self.authorization: str | None = None
        """Of the last request."""

    def register(self, subject: str, given: dict[str, Any]) -> int:
        """The id of a schema; the same schema has the same id everywhere."""
        keys = ("schema", "schemaType", "references")
        kept: dict[str, Any] = {key: given[key] for key in keys if key in given}
        known = (number for number, one in self.schemas.items() if one == kept)
        number = next(known, len(self.schemas) + 1)
        self.schemas[number] = kept
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def get(self, path: str) -> dict[str, Any] | list[Any] | None:
        if path == "/schemas/types":
            return ["AVRO", "JSON", "PROTOBUF"]
        found = re.fullmatch(r"/schemas/ids/(\d+)", path)
        if found is not None:
            return self.schemas.get(int(found[1]))
        found = re.fullmatch(r"/subjects/([^/]+)/versions/(\w+)", path)
        versions = self.subjects.get(found[1]) if found is not None else None
        if found is None or not versions:
            return None
        version = len(versions) if found[2] == "latest" else int(found[2])
        number = versions[version - 1]
        return {"subject": found[1], "version": version, "id": number} | self.schemas[number]

    def post(self, path: str, given: dict[str, Any]) -> dict[str, Any] | None:
        found = re.fullmatch(r"/subjects/([^/]+)(/versions)?", path)
        if found is None:
            return None
        number = self.register(found[1], given)
        version = self.subjects[found[1]].index(number) + 1
        return {"subject": found[1], "version": version, "id": number} | self.schemas[number]


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """One that runs, at `url`."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(registry.get(self._path()))

        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._reply(registry.post(self._path(), given))

        def _path(self) -> str:
            registry.asked.append(self.path)
            registry.authorization = self.headers.get("Authorization")
            return self.path.partition("?")[0]

        def _reply(self, found: Any) -> None:
            status = registry.failing or (404 if found is None else 200)
            if any(self.path.startswith(f"/schemas/ids/{one}?") for one in registry.broken):
                status = 500
            body = json.dumps({"error_code": status} if status != 200 else found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
