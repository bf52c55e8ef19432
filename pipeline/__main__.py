"""What spark-submit runs: `spark-submit --packages CONNECTOR .../pipeline/__main__.py archive ...`.

The same commands and flags as `barnabas pipeline`; Spark's own flags (master, deploy resources,
jars) belong before the file, as with any job.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Run one pipeline command; returns its exit code."""
    # Running a file puts its folder on the path; the packages are one level up.
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(entry for entry in sys.path if Path(entry) != here)]
    from pipeline.cli import run_command

    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
