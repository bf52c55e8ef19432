"""One request on its way to another node, and what is told when it has no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wire.schema import Request, Response

logger = logging.getLogger(__name__)

OnComplete = Callable[[Any], None]
"""Called exactly once, with the response or a PeerError."""


class PeerError(Exception):
    """The request has no answer: it was not delivered, or nobody knows whether it was."""


def always() -> bool:
    """Who asks waits for the answer until the deadline."""
    return True


class Call:
    """One request on its way. `is_wanted`: does anybody wait for its answer (still)."""

    __slots__ = ("deadline_ms", "is_wanted", "on_complete", "request", "response_class", "version")

    def __init__(
        self,
        request: Request,
        version: int,
        response_class: type[Response],
        on_complete: OnComplete,
        deadline_ms: int,
        is_wanted: Callable[[], bool] = always,
    ) -> None:
        self.request = request
        self.version = version
        self.response_class = response_class
        self.on_complete = on_complete
        self.deadline_ms = deadline_ms
        self.is_wanted = is_wanted

    def complete(self, answer: Any) -> None:
        try:
            self.on_complete(answer)
        except Exception:
            logger.exception("completion failed request=%s", type(self.request).__name__)
