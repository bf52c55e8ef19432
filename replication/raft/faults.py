"""What becomes of an error that nobody expected in the quorum or the controller: the process ends.

What: the raft driver, the loader of its records and the controller are state machines that others
rely on. One of their threads that dies in silence leaves a node that leads, is asked, and never
answers, and nobody is elected in its place. So none of them dies alone. Kafka: FaultHandler,
ProcessTerminatingFaultHandler.
How: their threads are made by `FaultHandler.thread`, and nothing inside catches what it does not
expect. Who calls into them from elsewhere does it on one of these threads, or gets the error.
Not faults: a KafkaError, which is an answer; an error in the decision on one request, which is pure
and has changed nothing; a publisher or a snapshot that fails, after which all others go on
(LoggingFaultHandler there, too). These are logged where they happen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


def _raise(error: BaseException) -> None:
    raise error


class FaultHandler:
    """One per process. `end` ends it; by default, for who owns no process, the error goes on."""

    def __init__(self, end: Callable[[BaseException], object] = _raise) -> None:
        self._end = end

    def fatal(self, what: str, error: BaseException) -> None:
        """`what` cannot go on. Returns only where `end` does."""
        logger.critical("%s failed and the process ends error=%r", what, error, exc_info=error)
        self._end(error)

    def thread(self, name: str, work: Callable[[], object]) -> threading.Thread:
        """A thread, not started yet, whose death by an error is the end of the process."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.fatal(name, error)

        return threading.Thread(target=run, name=name, daemon=True)
