"""Where the broker's code lives, and how a process that runs it is started.

An installed wheel keeps the packages `wire`, `storage`, `replication` and `server` in the private
folder `barnabas/_app`, so that it claims no name but `barnabas` in its user's environment; in a
checkout they stand at the repository root. Either folder goes first on the path of the process
that runs the broker, and of no other.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGES = ("wire", "storage", "replication", "server", "pipeline")

# What the child runs. -I (isolated mode) keeps the user's PYTHONPATH, current directory and
# sitecustomize out of the broker: none of them can shadow one of our packages.
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, {!r}); from server.commands.main import main; sys.exit(main())"
)


def app_dir() -> Path:
    """The folder that holds the broker's packages."""
    package = Path(__file__).resolve().parent
    private = package / "_app"
    return private if private.is_dir() else package.parent


def command(*arguments: str) -> list[str]:
    """The command line of a child process that runs `barnabas ARGUMENTS`.

    With faulthandler: a crash in C, and SIGABRT, show in its log what each thread was doing.
    """
    flags = ("-I", "-X", "faulthandler")
    return [sys.executable, *flags, "-c", _BOOTSTRAP.format(str(app_dir())), *arguments]


def expose_app() -> None:
    """Put the broker's packages first on this process's path.

    Raises RuntimeError when a module of one of their names was already imported from elsewhere:
    mixing two packages called `server` would run neither.
    """
    folder = app_dir()
    for name in _PACKAGES:
        module = sys.modules.get(name)
        origin = getattr(module, "__file__", None)
        if module is not None and (origin is None or folder not in Path(origin).resolve().parents):
            raise RuntimeError(
                f"cannot run the broker inside this process: a foreign module {name!r} is already "
                f"imported (from {origin}). Use barnabas.Broker, which runs it in its own process."
            )
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
