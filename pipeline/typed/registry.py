"""A client of schema registries that speak Confluent's REST API, as far as reading needs it.

Asked on the driver for the latest schema of a subject, and on executors for those that values were
written with; what the driver knows travels along. A registry that does not answer is an error, a
schema that it does not have is None.

Travels to executors by value.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple, TypeVar

_Kind = TypeVar("_Kind")
_TIMEOUT_S = 10.0
_TRIES = 4
_PAUSE_S = 0.5
_AGAIN = (408, 429)
"""Time-out, and too many requests: the same may be asked again (RFC 9110, RFC 6585)."""


class RegistryError(Exception):
    """The registry does not answer, or not as a registry does."""


class Schema(NamedTuple):
    """A schema as a file or a registry has it."""

    text: str
    kind: str
    """AVRO, JSON or PROTOBUF."""
    imports: tuple[tuple[str, str], ...] = ()
    """(name, text) of what it refers to, in an order in which each one's own come before it."""
    id: int | None = None


class Registry:
    """One registry: `url` may have user and password, and may be several, with commas."""

    def __init__(self, url: str, *, tries: int = _TRIES) -> None:
        self._urls = [one.strip().rstrip("/") for one in url.split(",")]
        self._tries = tries
        self._schemas: dict[int, Schema | None] = {}

    def check(self) -> None:
        """Raise RegistryError unless it answers."""
        self._get("/schemas/types")

    def latest(self, subject: str) -> Schema | None:
        """The newest schema of a subject."""
        return self._version(subject, "latest")

    def by_id(self, schema_id: int) -> Schema | None:
        """The schema with that id; asked for once."""
        if schema_id not in self._schemas:
            # Protobuf comes as a descriptor; for other kinds the word means nothing.
            found = self._get(f"/schemas/ids/{schema_id}?format=serialized")
            self._schemas[schema_id] = None if found is None else self._schema(schema_id, found)
        return self._schemas[schema_id]

    def _version(self, subject: str, version: str) -> Schema | None:
        quoted = urllib.parse.quote(subject, safe="")
        found = self._get(f"/subjects/{quoted}/versions/{version}")
        return None if found is None else self.by_id(_part(found, "id", int))

    def _schema(self, schema_id: int, found: Any) -> Schema:
        imports: dict[str, str] = {}
        text, kind = _part(found, "schema", str), found.get("schemaType", "AVRO")
        for one in _part(found, "references", list) if found.get("references") else ():
            subject, version = _part(one, "subject", str), _part(one, "version", int)
            schema = self._version(subject, str(version))
            if schema is None:
                raise RegistryError(
                    f"the schema registry has no {subject} version {version}, which schema"
                    f" {schema_id} refers to"
                )
            imports |= dict(schema.imports)
            imports[_part(one, "name", str)] = schema.text
        return Schema(text, kind, tuple(imports.items()), schema_id)

    def _get(self, path: str) -> Any:
        """JSON of the first registry that answers; None for what it does not have."""
        problem = ""
        for attempt in range(self._tries):
            if attempt:
                time.sleep(_PAUSE_S * attempt)
            for url in self._urls:
                try:
                    return _answer(url, path)
                except _NoAnswer as error:
                    problem = str(error)
        raise RegistryError(problem)


class _NoAnswer(Exception):
    """Not now; ask again, or another one."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """User and password are for the registry they were given for, and not for where it sends us
    (RFC 9110, 15.4: what a redirected request leaves out)."""

    def redirect_request(self, req: Any, *answer: Any) -> Any:
        again = super().redirect_request(req, *answer)
        if again is not None and (again.type, again.host) != (req.type, req.host):
            again.remove_header("Authorization")
        return again


def _answer(url: str, path: str) -> Any:
    try:
        opener = urllib.request.build_opener(_Redirects)
        with opener.open(_request(url, path), timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404 and _is_a_registrys(error):
                return None
            text = f"the schema registry {_shown(url)} answers {error.code} {error.reason}"
            kind = _NoAnswer if error.code >= 500 or error.code in _AGAIN else RegistryError
            raise kind(f"{text}; check --registry") from None
    except (OSError, http.client.HTTPException) as error:
        raise _NoAnswer(
            f"the schema registry {_shown(url)} does not answer"
            f" ({getattr(error, 'reason', error)}); check that it runs, and --registry"
        ) from None
    except ValueError:
        raise RegistryError(
            f"{_shown(url)} is no schema registry: its answer is no JSON; check --registry"
        ) from None


def _is_a_registrys(answer: Any) -> bool:
    """Whether a registry has not what was asked for, which it gives a number, or who answers has
    nothing at that path: another program, or a registry at another one."""
    try:
        return "error_code" in json.load(answer)
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return False


def _part(answer: Any, name: str, kind: type[_Kind]) -> _Kind:
    """A part of an answer. Raises RegistryError for one that a registry does not give."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise RegistryError(f"no schema registry answers without {name!r}; check --registry")
    return value


def _request(url: str, path: str) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path}{path}")
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    if parts.username is not None:
        user = urllib.parse.unquote(parts.username)
        password = urllib.parse.unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    return request


def _shown(url: str) -> str:
    """Without user and password."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
