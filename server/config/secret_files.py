"""Files that hold secrets: whose are they?

Their owner's, and a group's at most, that may only read: containers' secrets are mounted so.
Anybody else is warned of, each time that the file is read; nothing is refused, as in Kafka.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

_OTHERS = 0o077 & ~0o040
_OPENS = re.compile(r"(password|secret|secret\.key|keystore\.key|sasl\.jaas\.config)$")
"""Keys, a listener's too, whose values open something."""


def warn_of_others(path: str | Path, descriptor: int) -> None:
    """Log a warning if somebody else may read (or write) an open file that holds secrets."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & _OTHERS:
        logger.warning("others may read the secrets in %s (mode %o): chmod 600", path, mode)


def holds_secrets(properties: Mapping[str, str]) -> bool:
    """Of a server or a client."""
    return any(value and _OPENS.search(key) for key, value in properties.items())
