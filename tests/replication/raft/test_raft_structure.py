"""Who may change what in the raft room, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import replication.raft

ROOM = Path(replication.raft.__file__).parent
MODULES = sorted(path.name for path in ROOM.glob("*.py"))


def assigned(tree: ast.AST) -> list[ast.Attribute]:
    """The attributes that statements give another value."""
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets.append(node.target)
    spread = [part for target in targets for part in ast.walk(target)]
    return [
        part for part in spread if isinstance(part, ast.Attribute) and type(part.ctx) is ast.Store
    ]


def root(node: ast.expr) -> str:
    """The name that an attribute hangs on: `self.replicas[1].key` -> self."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ast.dump(node)


@pytest.mark.parametrize("name", MODULES)
def test_nobody_assigns_what_is_anothers(name: str) -> None:
    """But the effects of a step, which are there to be filled in."""
    tree = ast.parse((ROOM / name).read_text())
    assert not {
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in assigned(tree)
        if root(node) not in ("self", "ready")
    }


@pytest.mark.parametrize("name", MODULES)
def test_a_role_changes_in_one_place(name: str) -> None:
    tree = ast.parse((ROOM / name).read_text())
    where = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in assigned(function)
        if node.attr == "current"
    }
    owner = name == "quorum_state.py"
    assert where <= ({"__init__", "initialize", "become"} if owner else set())
