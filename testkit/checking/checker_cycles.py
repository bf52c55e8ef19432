"""Cycles among transactions: who must have come before whom, and who that makes its own ancestor.

PURE. A graph maps a node to its successors, each with the sentence that says why it comes later.
`cycles` answers one cycle, a shortest, of each knot (strongly connected component), as sentences:
the evidence a person can follow, edge by edge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise

Graph = Mapping[str, Mapping[str, str]]
_TRIED = 200
"""Edges of one knot from which a shortest cycle is looked for."""


def cycles(graph: Graph, *, through: Graph | None = None) -> Iterator[str]:
    """The cycles of `graph`, one of each knot, that have an edge of `through` (by default any)."""
    first = graph if through is None else through
    for knot in knots(graph):
        edges = ((a, b) for a in sorted(knot) for b in first.get(a, ()) if b in knot)
        paths = ([a, *_path(graph, b, a)] for a, b in islice(edges, _TRIED))
        shortest = min(paths, key=len, default=None)
        if shortest is not None:
            (a, b), *others = pairwise(shortest)
            yield ", ".join([first[a][b], *(graph[a][b] for a, b in others)])


def knots(graph: Graph) -> Iterator[set[str]]:
    """Each set of two or more nodes that all reach one another (Kosaraju and Sharir)."""
    backwards: dict[str, list[str]] = {}
    for one, successors in graph.items():
        for other in successors:
            backwards.setdefault(other, []).append(one)
    seen: set[str] = set()
    last_left: list[str] = []
    for root in graph:
        last_left += _left(graph, root, seen)
    seen = set()
    for root in reversed(last_left):
        knot = set(_left(backwards, root, seen))
        if len(knot) > 1:
            yield knot


def _left(graph: Mapping[str, Iterable[str]], root: str, seen: set[str]) -> Iterator[str]:
    """Nodes that are reached and were not seen, in the order in which a search leaves them."""
    work = [(root, iter(graph.get(root, ())))] if root not in seen else []
    seen.add(root)
    while work:
        node, successors = work[-1]
        for other in successors:
            if other not in seen:
                seen.add(other)
                work.append((other, iter(graph.get(other, ()))))
                break
        else:
            work.pop()
            yield node


def _path(graph: Graph, start: str, goal: str) -> list[str]:
    """A shortest way, which there is: both are of one knot."""
    came_from = {start: ""}
    queue = deque([start])
    while goal not in came_from:
        node = queue.popleft()
        for other in graph.get(node, ()):
            if other not in came_from:
                came_from[other] = node
                queue.append(other)
    path = [goal]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]
