"""Small faults for a module: each a change of one place, as a hand might slip.

What is left alone: module-level constants, annotations, texts, what a `raise` says, log lines,
assertions, and what runs for type checkers only. A test need not notice those.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
Change = Callable[[Any], None]
_LOGGERS = {"log", "logger", "_log", "_logger", "LOG", "audit"}


class Mutant(NamedTuple):
    """`function` is the qualified name of what the change is in; `tree` the whole module.

    `change` is told with what is around it, and with a number where a function has several alike.
    """

    function: str
    line: int
    change: str
    tree: ast.Module


def mutants_of(source: str) -> list[Mutant]:
    """All of them, in the order of the text. Pure."""
    tree = ast.parse(source)
    around = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found: list[Mutant] = []
    alike: Counter[tuple[str, str]] = Counter()
    for function, node in _in_functions(tree):
        shown = around[node] if isinstance(node, ast.Constant) else node
        for apply in _changes(node):
            changed = copy.deepcopy(tree)
            twins = dict(zip(ast.walk(tree), ast.walk(changed), strict=True))
            before = _told(twins[shown])
            apply(twins[node])
            ast.fix_missing_locations(changed)
            if (after := _told(twins[shown])) == before:
                continue
            change = f"{before}  ->  {after}"
            alike[function, change] += 1
            if (number := alike[function, change]) > 1:
                change += f"  (number {number})"
            found.append(Mutant(function, node.lineno, change, changed))
    return found


def _told(node: ast.AST) -> str:
    """The first line of it: enough of a statement with a body."""
    return ast.unparse(node).partition("\n")[0]


def _in_functions(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Each place in the body of a function that may be changed, with the function's name."""
    for name, function in _functions(tree, ()):
        for statement in function.body:
            for node in _places(statement):
                yield name, node


def _functions(
    node: ast.AST, path: tuple[str, ...]
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join((*path, child.name)), child
            yield from _functions(child, (*path, child.name))
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, (*path, child.name))
        else:
            yield from _functions(child, path)


def _places(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return  # has its own turn
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if _is_log_line(node):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)


def _is_log_line(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = node.value.func
    if not isinstance(called, ast.Attribute):
        return False
    owner = called.value
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    return name in _LOGGERS


def _changes(node: ast.AST) -> Iterator[Change]:
    """What may be done to a node, each as something that is done to its twin in another tree."""
    yield from _of_operators(node)
    yield from _of_values(node)
    yield from _of_statements(node)


def _of_operators(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                for other in _COMPARED[type(op)]:
                    yield lambda twin, at=index, other=other: twin.ops.__setitem__(at, other())
        case ast.BoolOp(op=op):
            other_op = ast.Or if isinstance(op, ast.And) else ast.And
            yield lambda twin: setattr(twin, "op", other_op())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda twin: setattr(twin, "op", ast.UAdd())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _COMPUTED:
            if not _is_text(node):
                yield lambda twin: setattr(twin, "op", _COMPUTED[type(op)]())


def _of_values(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Constant(value=bool() as value):
            yield lambda twin: setattr(twin, "value", not value)
        case ast.Constant(value=int() as value):
            yield lambda twin: setattr(twin, "value", value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield lambda twin: setattr(twin, "test", ast.UnaryOp(ast.Not(), twin.test))


def _of_statements(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call()):
            yield lambda twin: setattr(twin, "value", ast.Constant(None))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield lambda twin: setattr(twin, "value", ast.Constant(None))
        case ast.Break() | ast.Continue():
            yield lambda twin: setattr(twin, "__class__", ast.Pass)


def _is_text(node: ast.AST) -> bool:
    sides = (getattr(node, "left", None), getattr(node, "right", None))
    return any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )
