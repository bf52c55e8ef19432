"""kafka-python reads its schemas in a way that Python's newest versions advise against, when it is
first imported: here, whichever of these tests are run."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(open|read)_text is", DeprecationWarning)
    import kafka.admin  # noqa: F401
