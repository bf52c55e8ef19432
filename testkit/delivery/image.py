"""Performs a Dockerfile without a container engine: each step for real, in a clean directory.

Why: where no engine runs, a Dockerfile that nobody has built is a guess. Here each RUN is executed,
each COPY copied (the context through .dockerignore), ENV, WORKDIR and USER obeyed, and the result
run by its own ENTRYPOINT. A step that fails, an instruction that is not known here, or a path
outside the image is a BuildError.

How: the image's file system is a directory, `root`, and the absolute paths of the Dockerfile are
rewritten to lie in it. `FROM python:X-slim` is a copy of the interpreter that runs the tests with
nothing of its site-packages but pip. All steps run as one unprivileged user: the Dockerfile's USER
by number when the tests run as root, else whoever runs them (then that number stands in the
Dockerfile's place). Before the entry point is started, all but the volumes is made read-only.

What this cannot prove: that the real base image exists and holds what its steps need (`install`,
`printf`), name spaces, and the engine's own network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

STEP_TIMEOUT_S = 120

# The top folders of an image that steps may touch.
_FOLDERS = ("build", "etc", "opt", "usr", "var")
_ABSOLUTE = re.compile(r"(?<![\w./])/(?=[A-Za-z])([\w-]+)")
_NOT_IN_THE_BASE = (
    *("*-packages", "test*", "idlelib", "tkinter", "turtledemo", "config-*", "lib2to3"),
    *("pydoc_data", "*.opt-*.pyc"),
)
_MACHINE = re.compile(r"PIP_.*|(HTTPS?|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)", re.IGNORECASE)


class BuildError(Exception):
    """A step of the Dockerfile that cannot be performed; the text names it and says why."""


class Instruction(NamedTuple):
    name: str
    rest: str


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile: comments dropped, continued lines joined."""
    instructions = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
        elif pending.strip():
            name, _space, rest = pending.strip().partition(" ")
            instructions.append(Instruction(name.upper(), rest.strip()))
            pending = ""
    return instructions


class Ignore:
    """A .dockerignore: the last pattern that matches a path or a folder above it decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [
            (_pattern(line.removeprefix("!")), not line.startswith("!"))
            for line in lines
            if line and not line.startswith("#")
        ]

    def __call__(self, path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        ignored = False
        for pattern, verdict in self._rules:
            if any(pattern.fullmatch(one) for one in above):
                ignored = verdict
        return ignored


def _pattern(glob: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob.strip("/"))
    known = {"**/": r"(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(known.get(piece) or re.escape(piece) for piece in pieces))


@dataclass(slots=True)
class Stage:
    """What one FROM begins and its instructions add."""

    name: str
    environment: dict[str, str]
    working_directory: str = "/"
    user: str = "0"
    entry_point: list[str] = field(default_factory=list)
    health_check: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    stop_signal: str = "SIGTERM"


class Image:
    """Builds in `directory` (made anew, removed by `remove`), then starts what it built."""

    def __init__(self, dockerfile: str, context: Path) -> None:
        self._context = context
        self._instructions = parse(dockerfile)
        users = [i.rest.partition(":")[0] for i in self._instructions if i.name == "USER"]
        if not users or not users[-1].isdigit() or users[-1] == "0":
            raise BuildError("USER: expected the number of a user who is not root")
        self.directory = Path(tempfile.mkdtemp(prefix="barnabas-image-"))
        self.directory.chmod(0o755)
        self.root = self.directory / "root"
        self.is_root = os.getuid() == 0
        self.uid = int(users[-1]) if self.is_root else os.getuid()
        self.gid = int(users[-1]) if self.is_root else os.getgid()
        self._declared_uid = users[-1]
        version = "{}.{}".format(*sys.version_info)
        self._arguments = {"PYTHON_VERSION": version}
        self._base_image = f"python:{version}-slim"
        self.stage: Stage | None = None

    @property
    def final(self) -> Stage:
        assert self.stage is not None, "no FROM"
        return self.stage

    # ---- building

    def build(self) -> None:
        """Perform every instruction. Raises BuildError."""
        for path in ("base/bin", "base/lib", "tmp"):
            (self.directory / path).mkdir(parents=True)
        self._copy_interpreter()
        self._own(self.directory / "tmp")
        for instruction in self._instructions:
            self.perform(instruction)
        self._seal()

    def perform(self, instruction: Instruction) -> None:
        """Perform one instruction. Raises BuildError."""
        known: dict[str, Callable[[str], None]] = {
            "ARG": self._arg,
            "COPY": self._copy,
            "ENTRYPOINT": self._entrypoint,
            "ENV": self._env,
            "EXPOSE": self._expose,
            "FROM": self._from,
            "HEALTHCHECK": self._healthcheck,
            "RUN": self._run,
            "STOPSIGNAL": self._stopsignal,
            "USER": self._user,
            "VOLUME": self._volume,
            "WORKDIR": self._workdir,
        }
        if instruction.name not in known:
            raise BuildError(f"{instruction.name}: not known here")
        known[instruction.name](instruction.rest)

    def empty_volumes(self) -> None:
        """What the next container finds when it is given no volume of the last one's."""
        for volume in self.final.volumes:
            for path in self.in_root(volume).iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def remove(self) -> None:
        """Remove everything."""
        for path in [] if self.is_root else _below(self.root):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(self.directory)

    def in_root(self, path: str) -> Path:
        """Where an absolute path of the image really is."""
        return self.root / path.lstrip("/")

    def _copy_interpreter(self) -> None:
        """The base image: this interpreter, its standard library and pip, and no other package."""
        base = self.directory / "base"
        real = Path(sys.executable).resolve()
        for name in ("python", "python3", real.name):
            shutil.copy2(real, base / "bin" / name)
        library = Path(sysconfig.get_path("stdlib"))
        ignore = shutil.ignore_patterns(*_NOT_IN_THE_BASE)
        shutil.copytree(library, base / "lib" / library.name, symlinks=True, ignore=ignore)
        for shared in Path(sysconfig.get_config_var("LIBDIR") or "/nowhere").glob("libpython*.so*"):
            shutil.copy2(shared, base / "lib", follow_symlinks=True)
        import pip

        packages = self._ask_base("import sysconfig; print(sysconfig.get_path('purelib'))")
        shutil.copytree(Path(pip.__file__).parent, Path(packages) / "pip", symlinks=True)

    def _ask_base(self, code: str) -> str:
        base = self.directory / "base"
        environment = {"LD_LIBRARY_PATH": str(base / "lib")}
        command = [str(base / "bin" / "python"), "-I", "-c", code]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def _own(self, *paths: Path) -> None:
        if not self.is_root:
            return
        for path in paths:
            for one in [path, *path.rglob("*")]:
                os.chown(one, self.uid, self.gid, follow_symlinks=False)

    def _seal(self) -> None:
        """Take the right to write from everything but the volumes, as root's files would."""
        volumes = [self.in_root(volume) for volume in self.final.volumes]
        for path in _below(self.root):
            if any(v == path or v in path.parents for v in volumes):
                continue
            if self.is_root:
                os.chown(path, 0, 0)
            else:
                path.chmod(path.stat().st_mode & ~0o222)

    # ---- instructions

    def _arg(self, rest: str) -> None:
        name, _equals, default = rest.partition("=")
        self._arguments.setdefault(name, default)

    def _from(self, rest: str) -> None:
        image, _as, name = re.sub(r"\s+AS\s+", "\0", rest, flags=re.IGNORECASE).partition("\0")
        if self._substituted(image, self._arguments) != self._base_image:
            raise BuildError(f"FROM {image}: only {self._base_image} can be performed here")
        if self.stage is not None:
            self.root.rename(self.directory / f"stage-{self.stage.name}")
        for folder in (*_FOLDERS, "var/lib"):
            (self.root / folder).mkdir(exist_ok=True, parents=True)
        self._own(self.root)
        local = self.root / "usr" / "local"
        local.symlink_to(self.directory / "base")
        environment = {
            "PATH": f"{local}/bin:/usr/bin:/bin",
            "HOME": str(self.directory / "tmp"),
            "TMPDIR": str(self.directory / "tmp"),
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": f"{local}/lib",
        }
        self.stage = Stage(name or "last", environment)

    def _workdir(self, rest: str) -> None:
        self.final.working_directory = rest
        where = self.in_root(rest)
        if not where.exists():
            where.mkdir(parents=True)
            self._own(where)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        stage = None
        if sources[0].startswith("--from="):
            stage = self.directory / f"stage-{sources.pop(0).removeprefix('--from=')}"
        to = self.in_root(os.path.join(self.final.working_directory, target))
        for source in sources:
            origin = self._context / source if stage is None else stage / source.lstrip("/")
            if not origin.exists():
                raise BuildError(f"COPY {rest}: {source} is not there")
            if origin.is_dir():
                ignore = None if stage is not None else self._ignoring()
                shutil.copytree(origin, to, symlinks=True, dirs_exist_ok=True, ignore=ignore)
            elif stage is None and self._is_ignored(source):
                raise BuildError(f"COPY {rest}: {source} is left out by .dockerignore")
            else:
                shutil.copy2(origin, to / origin.name if target.endswith("/") else to)
        self._own(to)

    def _is_ignored(self, path: str) -> bool:
        return Ignore((self._context / ".dockerignore").read_text())(path)

    def _ignoring(self) -> Callable[[str, list[str]], list[str]]:
        ignore = Ignore((self._context / ".dockerignore").read_text())

        def names(folder: str, entries: list[str]) -> list[str]:
            relative = Path(folder).relative_to(self._context).as_posix()
            prefix = "" if relative == "." else f"{relative}/"
            return [entry for entry in entries if ignore(prefix + entry)]

        return names

    def _run(self, rest: str) -> None:
        done = subprocess.run(
            [*self._as_user(), "/bin/sh", "-c", self._mapped(rest)],
            cwd=self.in_root(self.final.working_directory),
            env={**_of_the_machine(), **self.final.environment},
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise BuildError(f"RUN {rest}\n{done.stdout}{done.stderr}")

    def _env(self, rest: str) -> None:
        name, equals, value = rest.partition("=")
        if not equals:
            raise BuildError(f"ENV {rest}: expected NAME=VALUE")
        value = self._mapped(value)
        self.final.environment[name] = self._substituted(value, self.final.environment)

    def _user(self, rest: str) -> None:
        self.final.user = rest

    def _volume(self, rest: str) -> None:
        self.final.volumes = json.loads(rest)

    def _expose(self, rest: str) -> None:
        self.final.ports = [int(port) for port in rest.split()]

    def _stopsignal(self, rest: str) -> None:
        self.final.stop_signal = rest

    def _entrypoint(self, rest: str) -> None:
        self.final.entry_point = _exec_form("ENTRYPOINT", rest)

    def _healthcheck(self, rest: str) -> None:
        _options, command, words = rest.partition("CMD ")
        if not command:
            raise BuildError(f"HEALTHCHECK {rest}: expected a command")
        self.final.health_check = _exec_form("HEALTHCHECK", words)

    def _substituted(self, text: str, values: Mapping[str, str]) -> str:
        return re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], ""), text)

    def _mapped(self, text: str) -> str:
        """`text` with its absolute paths moved into `root`, and the user made the one we have."""

        def move(match: re.Match[str]) -> str:
            if match[1] not in _FOLDERS:
                raise BuildError(f"/{match[1]} is not a folder of the image: {text}")
            return f"{self.root}/{match[1]}"

        moved = _ABSOLUTE.sub(move, text)
        if self.is_root:
            return moved
        for flag, number in (("-o", self.uid), ("-g", self.gid)):
            moved = moved.replace(f"{flag} {self._declared_uid}", f"{flag} {number}")
        return moved

    def _as_user(self) -> list[str]:
        if not self.is_root:
            return []
        user = [f"--reuid={self.uid}", f"--regid={self.gid}"]
        return ["setpriv", *user, "--clear-groups", "--no-new-privs", "--"]

    # ---- running

    def start(self, variables: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
        """`docker run -e ... IMAGE ARGUMENTS`: the entry point as the image's user."""
        return self._popen([*self.final.entry_point, *arguments], variables)

    def is_healthy(self, variables: Mapping[str, str]) -> tuple[bool, str]:
        """What the HEALTHCHECK says: its verdict and its line."""
        process = self._popen(self.final.health_check, variables)
        out, err = process.communicate(timeout=30)
        return process.returncode == 0, out + err

    def _popen(self, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._as_user(), *(self._mapped(word) for word in command)],
            cwd=self.in_root(self.final.working_directory),
            env={**self.final.environment, "HOME": str(self.root), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _below(root: Path) -> list[Path]:
    """`root` and all below it, but for links and what they lead to."""
    paths = [root, *root.rglob("*")]
    return [path for path in paths if not path.is_symlink()]


def _exec_form(instruction: str, text: str) -> list[str]:
    """The words of the JSON form: the other one puts a shell before the broker."""
    if not text.startswith("["):
        raise BuildError(f"{instruction} {text}: expected the exec form, a JSON array")
    words = json.loads(text)
    assert isinstance(words, list)
    return [str(word) for word in words]


def _of_the_machine() -> dict[str, str]:
    """How this machine reaches the package index."""
    return {name: value for name, value in os.environ.items() if _MACHINE.fullmatch(name)}
