"""The house stays tidy: what prose promises of the source is checked here (after TigerBeetle's
tidy.zig). Reads the source, runs nothing of it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("wire", "storage", "replication", "server", "pipeline", "barnabas")
DOCUMENTS = ("README.md", "docs/*.md", "compat_tests/README.md")

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600
ROOM_MODULES_MAX = 24

# A clock, a socket, a thread, randomness, the operating system, a log.
IMPURE = frozenset(
    (
        "asyncio", "concurrent", "fcntl", "logging", "multiprocessing", "os", "pathlib", "queue",
        "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess",
        "tempfile", "threading", "time", "uuid",
    )
)  # fmt: skip
# `random.Random` may be a parameter's type; what draws by itself may not be called.
RANDOM_ALLOWED = frozenset(("Random",))

# Public names that no product code uses, and why they are there.
USED_BY_OTHERS = {
    "isolate": "barnabas.Cluster, for tests of those who use it",
    "slow": "barnabas.Cluster, for tests of those who use it",
    "pytest_configure": "hook of the pytest plugin",
    "pytest_runtest_makereport": "hook of the pytest plugin",
    "pytest_runtest_setup": "hook of the pytest plugin",
    "pushFilters": "PySpark calls it (DataSourceReader)",
    "streamWriter": "PySpark calls it (DataSource)",
    "on_partitions_assigned": "kafka-python calls it (ConsumerRebalanceListener)",
    "on_partitions_revoked": "kafka-python calls it (ConsumerRebalanceListener)",
    "resign": "the driver's own way out of leadership; the quorum's tests depose leaders with it",
    # What tests look at, to see that nothing is kept or that two states are one.
    "delayed": "replication.replicas.purgatory",
    "heap_size": "replication.replicas.timer",
    "queue_size": "server.network.request_channel",
    "transaction_count": "server.peers.transaction_markers",
    "state_equals": "replication.metadata.tables",
    "watched": "replication.replicas.purgatory",
}


# Times and sizes that modules choose for themselves: that two are equal is chance.
CHOSEN_APART = frozenset(("BACKOFF_MS", "COMPACT_ABOVE", "LOOK_S", "RETRY_MS"))

# Written of, but made by the build.
BUILT = frozenset(("barnabas/_app",))


class Module(NamedTuple):
    """One file of the product: its dotted name, text and tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""


@cache
def modules() -> dict[str, Module]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text("utf-8")
            found[name] = Module(name, path, text, ast.parse(text))
    return found


def where(module: Module, node: ast.AST) -> str:
    return f"{module.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


# ---- imports


def _is_for_types_only(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, but for what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not _is_for_types_only(child):
            yield from _at_run_time(child)


@cache
def imports(name: str, *, for_types: bool = False) -> frozenset[str]:
    """What a module imports when it runs: modules of ours by full name, others by their top."""
    found = set()
    tree = modules()[name].tree
    for node in ast.walk(tree) if for_types else _at_run_time(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {i for i in inner if i in modules()} or {node.module}
    return frozenset(i if i in modules() else i.partition(".")[0] for i in found)


def _reached(name: str) -> set[str]:
    seen: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += [other for other in imports(one) if other in modules()]
    return seen


def _draws(module: Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr not in RANDOM_ALLOWED
        for node in _at_run_time(module.tree)
    )


def _is_pure(module: Module) -> bool:
    return re.search(r"\bPURE\b(?! modules)", module.docstring) is not None


def test_pure_modules_reach_no_clock_socket_thread_chance_or_log() -> None:
    impure = {
        name: sorted(imports(name) & IMPURE) + (["random"] if _draws(module) else [])
        for name, module in modules().items()
    }
    found = [
        f"{name}: by {other}: {', '.join(impure[other])}"
        for name, module in modules().items()
        if _is_pure(module)
        for other in sorted(_reached(name))
        if impure[other]
    ]
    assert found == []


def test_rooms_have_no_circle_but_those_they_tell_of() -> None:
    """Of all imports, those for types alone and those of functions among them: whoever reads one
    module must read the other. A paragraph of the room's docstring names those that know each
    other.
    """
    found = []
    for room in {module.room for module in modules().values()}:
        told = modules()[room].docstring.split("\n\n") if room in modules() else []
        inside = [name for name, module in modules().items() if module.room == room]
        for one in inside:
            for other in inside:
                if (
                    one < other
                    and other in _reached_within(one, room)
                    and (one in _reached_within(other, room))
                ):
                    names = (one.rpartition(".")[2], other.rpartition(".")[2])
                    if not any(all(f"`{n}`" in part for n in names) for part in told):
                        found.append(f"{room}: {' <-> '.join(names)}")
    assert sorted(found) == []


@cache
def _reached_within(name: str, room: str) -> frozenset[str]:
    seen: set[str] = set()
    left = [name]
    while left:
        for other in imports(left.pop(), for_types=True):
            if other in modules() and other not in seen and modules()[other].room == room:
                seen.add(other)
                left.append(other)
    return frozenset(seen)


# ---- sizes


def test_functions_modules_and_rooms_are_small() -> None:
    found = []
    for module in modules().values():
        lines = module.text.count("\n")
        if lines > MODULE_LINES_MAX:
            found.append(f"{where(module, module.tree)}: {lines} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{where(module, node)}: {node.name}: {lines} lines")
    rooms = Counter(module.path.parent for module in modules().values())
    for room, count in rooms.items():
        if count - 1 > ROOM_MODULES_MAX:
            found.append(f"{room.relative_to(ROOT)}: {count - 1} modules")
    assert found == []


# ---- one home for each thing


def _constants(module: Module) -> Iterator[tuple[str, str, ast.stmt]]:
    """(name, what it is) of the constants and helpers at the top of a module; an error's number
    under a short name, and the variables of types, are each module's own.
    """
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            is_local = re.match(r"int\(ErrorCode\.|TypeVar\(", ast.unparse(node.value))
            if names and names[0].isupper() and not is_local:
                yield names[0].lstrip("_"), ast.dump(node.value), node
        elif isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            yield node.name.lstrip("_"), "".join(map(ast.dump, body)), node


def test_no_constant_and_no_helper_stands_twice() -> None:
    places: defaultdict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for module in modules().values():
        client = module.name.startswith("pipeline")  # it may not import the server
        for name, what, node in _constants(module):
            if what and name not in CHOSEN_APART:
                places[name, what, client].append(where(module, node))
    found = [f"{name}: {', '.join(at)}" for (name, *_), at in places.items() if len(at) > 1]
    assert sorted(found) == []


# ---- no name for tests alone


def _spoken(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
            yield str(node.value)


def _defined(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Public functions, methods and classes. Kafka's messages are declared all, served or not."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    if module.room != "wire.messages":
        for node in ast.walk(module.tree):
            if isinstance(node, kinds) and not node.name.startswith("_"):
                yield node.name, node


def test_no_public_name_is_for_tests_alone() -> None:
    spoken = {word for module in modules().values() for word in _spoken(ast.walk(module.tree))}
    apis = _api_functions()
    found = [
        f"{where(module, node)}: {name}"
        for module in modules().values()
        for name, node in _defined(module)
        if name not in spoken and name not in apis and name not in USED_BY_OTHERS
    ]
    assert found == []
    defined = {name for module in modules().values() for name, _ in _defined(module)}
    stale = [name for name in USED_BY_OTHERS if name in spoken or name not in defined]
    assert stale == [], "these need no exception any more"


def test_no_module_is_for_tests_alone() -> None:
    """Each is imported, or where a command or the plugin begins, or has the handlers of an area. A
    message that we do not serve yet is declared all the same.
    """
    used = set((ROOT / "pyproject.toml").read_text("utf-8").split('"'))
    used |= {f"server.handlers.{area}" for _, area in _api_rows()}
    for name, module in modules().items():
        used |= imports(name, for_types=True)
        used |= {
            ".".join(part for part in (module.room, node.module, name) if part)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom) and node.level
            for name in (None, *(alias.name for alias in node.names))
        }
    begins = ("__init__.py", "__main__.py")
    assert [
        name
        for name, module in modules().items()
        if name not in used and module.path.name not in begins and module.room != "wire.messages"
    ] == []


# ---- documents and docstrings

_PATH = re.compile(
    r"(?<![\w/.])((?:wire|storage|replication|server|pipeline|barnabas|tests|compat_tests|testkit"
    r"|benchmarks|docs)/[\w./-]*\w)"
)
_DOTTED = re.compile(
    r"(?<![\w/.])((?:wire|storage|replication|server|pipeline)(?:\.[a-z_]+)+(?:\.[A-Z]\w*)?)"
)
_FILES = (".properties", ".py", ".md", ".txt", ".log")


def _texts() -> Iterator[tuple[str, str]]:
    for pattern in DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")
    for module in modules().values():
        yield str(module.path.relative_to(ROOT)), "\n".join(_prose(module))


def _prose(module: Module) -> Iterator[str]:
    """Docstrings and comments."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""')):
            yield token.string


def _exists(path: str) -> bool:
    whole = ROOT / path
    return whole.exists() or whole.with_suffix(".py").exists()


def _is_known(dotted: str) -> bool:
    name = dotted
    while name and name not in modules():
        name = name.rpartition(".")[0]
    rest = dotted[len(name) + 1 :]
    return (
        not rest
        or (name in modules() and re.search(rf"\b{rest}\b", modules()[name].text)) is not None
    )


def test_every_path_and_module_that_is_written_of_exists() -> None:
    from server.config.kafka_config import catalogue

    keys = {key for section in catalogue() for key in section}
    found = []
    for source, text in _texts():
        for path in _PATH.findall(text):
            if path not in BUILT and not _exists(path):
                found.append(f"{source}: {path}")
        for dotted in _DOTTED.findall(text):
            if not dotted.endswith(_FILES) and dotted not in keys and not _is_known(dotted):
                found.append(f"{source}: {dotted}")
    assert sorted(set(found)) == []


# ---- tests


def _api_rows() -> list[tuple[str, str]]:
    """(name, area) of every API that is served."""
    from server.handlers import BROKER_APIS, CONTROLLER_APIS

    return [
        (api.function_name, api.area.removeprefix("server.handlers."))
        for table in (BROKER_APIS, CONTROLLER_APIS)
        for api in table.values()
    ]


def _api_functions() -> set[str]:
    """Found by their names: see server.handlers."""
    return {
        name + end
        for name, _ in _api_rows()
        for end in ("", "_is_costly", "_ordinary", "_together")
    }


@pytest.mark.parametrize("area", sorted({area for _, area in _api_rows()}))
def test_every_area_of_handlers_has_its_tests(area: str) -> None:
    room, _, name = area.rpartition(".")
    assert (ROOT / "tests/server/handlers" / room / f"test_{name}.py").exists()


@pytest.mark.parametrize(
    ("pattern", "homes"),
    [
        # A clock that is moved by hand; the simulator's nodes each have one that runs wrong.
        (r"def (now|wall)_ms\(self", {"testkit/clock.py", "tests/sim/world.py"}),
        (r"def \w*free_ports?\b", {"barnabas/fresh.py"}),
        (r"\burlsafe_b64encode\(", {"barnabas/fresh.py"}),
    ],
    ids=["clock", "port finder", "id maker"],
)  # fmt: skip
def test_tests_have_one_clock_one_port_finder_and_one_id_maker(
    pattern: str, homes: set[str]
) -> None:
    rooms = ("barnabas", "tests", "testkit", "compat_tests", "benchmarks")
    paths = (path for room in rooms for path in (ROOT / room).rglob("*.py"))
    found = {
        str(path.relative_to(ROOT)) for path in paths if re.search(pattern, path.read_text("utf-8"))
    }
    assert found - {str(Path(__file__).relative_to(ROOT))} == homes


def test_no_test_sleeps() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"\btime\.sle" + r"ep\(|import sle" + "ep", line)
    ]
    assert found == []
