from __future__ import annotations

import pytest

from barnabas.client_commands.output import lines, print_table


def test_a_terminal_sees_columns_and_a_pipe_sees_tabs() -> None:
    names, rows = ["TOPIC", "N", "IN SYNC"], [["a", 10, [1, 2]], ["orders", 1, []]]
    assert lines(names, rows, is_terminal=False) == ["a\t10\t1,2", "orders\t1\t-"]
    assert lines(names, rows, is_terminal=True) == [
        "TOPIC    N  IN SYNC",
        "a       10  1,2",
        "orders   1  -",
    ]
    assert lines(["A"], [], is_terminal=True) == ["A"]


def test_what_is_not_there_is_a_dash() -> None:
    rows = [["a", None, "", 0, False]]
    assert lines("NAMES", rows, is_terminal=False) == ["a\t-\t-\t0\tFalse"]


def test_each_field_of_a_row_has_a_name() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        lines(["A"], [["a", "b"]], is_terminal=True)


def test_a_table_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A", "B"], [["a", 1], ["b", 2]])
    assert capsys.readouterr().out == "a\t1\nb\t2\n"
