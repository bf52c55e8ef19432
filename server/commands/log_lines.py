"""How a node writes its log."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_CONTROLS |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\t"}
_CONTROLS |= {code: f"\\u{code:04x}" for code in (0x2028, 0x2029)}


class OneLine(logging.Formatter):
    """A message is one line, whatever the clients call their groups and transactions: nobody
    writes lines of his own into the log. Tracebacks keep theirs."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return super().formatMessage(record).translate(_CONTROLS)


def write_log(level: str) -> None:
    """Write the log of this process to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level, handlers=[handler], force=True)
