"""What can happen between any two calls of an attempt: its death, or somebody else's work."""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[int], None]


class Death(BaseException):
    """kill -9: nothing that comes after it has an effect."""


class Steps:
    """The steps of an attempt; `hook` is called with 2n before step n and 2n + 1 after it."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.steps = 0
        self.is_dead = False

    def step(self, effect: Callable[[], None]) -> None:
        if self.is_dead:
            raise Death
        number, self.steps = self.steps, self.steps + 1
        try:
            self.hook(2 * number)
            effect()
            self.hook(2 * number + 1)
        except Death:
            self.is_dead = True
            raise
