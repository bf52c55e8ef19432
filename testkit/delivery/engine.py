"""Builds a Dockerfile and runs what it built, by an engine: buildah, which needs no daemon.

The base, `python:3.11-slim`, is made of Debian's packages by mmdebstrap, once, into a store that
later builds only read: a registry of images may be out of reach where the tests run. Steps and
containers are isolated by `chroot`, which works inside of virtual machines and containers, too.

What this cannot prove: that the published base holds what the steps need, process 1, the network
of an engine, and that somebody asks the health check every ten seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from testkit.require import require, require_command

CACHE = Path(__file__).resolve().parents[2] / ".cache"
BASE = "python:3.11-slim"
# The release of Debian whose Python is 3.11, and what the published image has of it.
_RELEASE = "bookworm"
_PACKAGES = "python3-venv,python3-pip,python-is-python3"
_LEFT_OUT = ("doc", "man", "locale")
# How this machine reaches the package index: shown to the steps, not copied into the image.
_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs")
_STEP_TIMEOUT_S = 300
_HEALTH_TIMEOUT_S = 60


class Engine:
    """Buildah with a store of its own, which `close` removes."""

    def __init__(self) -> None:
        require_command("buildah", "apt-get install buildah")
        require(os.geteuid() == 0, "images are built by root here")
        store = base()
        # Not below /tmp: an overlay cannot lie on the overlay that a container has there.
        self.directory = Path(tempfile.mkdtemp(prefix="engine-", dir=CACHE))
        self.command = _buildah(self.directory, f"--storage-opt=overlay.imagestore={store}")

    def __call__(self, *words: str, given: str | None = None) -> str:
        """What buildah answers; a failure shows its last lines."""
        return _run([*self.command, *words], given)

    def build(self, tag: str, context: Path, dockerfile: str) -> None:
        """The image of this Dockerfile as `docker build` makes it.

        In Docker's format: OCI's knows no health check.
        """
        machine = [f"--volume={path}:{path}:ro" for path in _MACHINE if Path(path).exists()]
        options = ["--isolation=chroot", "--pull-never", "--format=docker", *machine]
        self("bud", *options, f"--tag={tag}", "--file=-", str(context), given=dockerfile)

    def config(self, tag: str) -> dict[str, Any]:
        """What the image declares, by Docker's names."""
        config = json.loads(self("inspect", "--type=image", tag))["Docker"]["config"]
        assert isinstance(config, dict)
        return config

    @contextmanager
    def files(self, tag: str) -> Iterator[Path]:
        """The root of a new container's file system."""
        container = self("from", "--pull-never", tag).strip()
        try:
            yield Path(self("mount", container).strip())
        finally:
            self("rm", container)

    def close(self) -> None:
        self("rm", "--all")
        shutil.rmtree(self.directory)


class Container:
    """What `docker run` starts: the image's command in a file system of its own.

    Its network is the host's.
    """

    def __init__(self, engine: Engine, tag: str, mounts: Mapping[Path, str]) -> None:
        self._engine = engine
        self._config = engine.config(tag)
        self._mounts = [f"--volume={path}:{where}" for path, where in mounts.items()]
        self._name = engine("from", "--pull-never", tag).strip()
        # A mount at a volume's place and the volume itself: which of them is seen is chance, with
        # buildah. So whoever mounts there has no other volume.
        for volume in self._config["Volumes"]:
            if any(where.startswith(f"{volume}:") for where in mounts.values()):
                engine("config", f"--volume={volume}-", self._name)

    def start(self, variables: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
        """`docker run -e ... IMAGE ARGUMENTS`: the entry point."""
        return subprocess.Popen(
            self._run([*self._config["Entrypoint"], *arguments], variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def health(self, variables: Mapping[str, str]) -> tuple[bool, str]:
        """What the health check says: its verdict and its lines."""
        kind, *command = self._config["Healthcheck"]["Test"]
        assert kind == "CMD", kind
        done = subprocess.run(
            self._run(command, variables),
            capture_output=True,
            text=True,
            timeout=_HEALTH_TIMEOUT_S,
            check=False,
        )
        return done.returncode == 0, done.stdout + done.stderr

    def files_of(self, user: int) -> list[str]:
        """The files that belong to this user, but for what lies in a volume."""
        root = Path(self._engine("mount", self._name).strip())
        paths = [path for path in root.rglob("*") if path.lstat().st_uid == user]
        self._engine("umount", self._name)
        return [str(path.relative_to(root)) for path in paths]

    def _run(self, command: list[str], variables: Mapping[str, str]) -> list[str]:
        options = [f"--env={name}={value}" for name, value in variables.items()]
        where = ["run", "--isolation=chroot", *self._mounts, *options, self._name]
        return [*self._engine.command, *where, "--", *command]


def first_process(run: subprocess.Popen[str]) -> psutil.Process:
    """The image's own command below buildah's processes: process 1, were it in a name space."""
    return psutil.Process(run.pid).children(recursive=True)[-1]


def base() -> Path:
    """The store that holds the base; made on first use, whole or not at all."""
    store = CACHE / f"base-{BASE.replace(':', '-')}"
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "base.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            fresh = Path(tempfile.mkdtemp(prefix="base-", dir=CACHE))
            try:
                _make_base(_buildah(fresh))
                (fresh / "store").rename(store)
            finally:
                shutil.rmtree(fresh)
    return store


def _make_base(buildah: list[str]) -> None:
    mmdebstrap = require_command("mmdebstrap", "apt-get install mmdebstrap")
    container = _run([*buildah, "from", "scratch"]).strip()
    root = _run([*buildah, "mount", container]).strip()
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    options += ["--dpkgopt=force-unsafe-io", "--variant=minbase", f"--include={_PACKAGES}"]
    try:
        _run([mmdebstrap, "--quiet", "--format=directory", *options, _RELEASE, root])
    finally:
        _run([*buildah, "umount", container])
    _run([*buildah, "commit", "--quiet", "--rm", container, BASE])


def _buildah(directory: Path, *options: str) -> list[str]:
    where = [f"--root={directory}/store", f"--runroot={directory}/run", "--storage-driver=overlay"]
    return ["buildah", *where, *options]


def _run(command: list[str], given: str | None = None) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=_STEP_TIMEOUT_S, check=False
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-4000:]
        raise AssertionError(f"exit {done.returncode}: {' '.join(command)}\n{tail}")
    return done.stdout
