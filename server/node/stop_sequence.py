"""What has to be undone when a node stops, in reverse order of its start."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class StopSequence:
    """Steps noted while a node starts, run in reverse when it stops, after a failed start too.

    Not locked: one thread starts and stops a node.
    """

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []

    def then(self, name: str, step: Callable[[], object]) -> None:
        """Note what stops the part that is started next."""
        self._steps.append((name, step))

    def attempt(self, name: str, step: Callable[[], object]) -> None:
        """Run one step now; a failure is logged and does not keep the rest."""
        try:
            step()
        except Exception:
            logger.exception("stopping failed part=%s", name)

    def run(self) -> None:
        """Run what was noted, the last first; each once."""
        while self._steps:
            self.attempt(*self._steps.pop())
