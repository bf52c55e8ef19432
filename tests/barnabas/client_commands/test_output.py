from __future__ import annotations

from barnabas.client_commands.output import lines


def test_a_terminal_sees_columns_and_a_pipe_sees_tabs() -> None:
    names, rows = ["TOPIC", "N", "IN SYNC"], [["a", 10, [1, 2]], ["orders", 1, []]]
    assert lines(names, rows, is_terminal=False) == ["a\t10\t1,2", "orders\t1\t-"]
    assert lines(names, rows, is_terminal=True) == [
        "TOPIC    N  IN SYNC",
        "a       10  1,2",
        "orders   1  -",
    ]
    assert lines(["A"], [], is_terminal=True) == ["A"]
