"""The time a search may take, shared out over its problems."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """``seconds`` for ``problems`` problems, or without limit; ``spent`` tells the seconds spent so far.

    Each problem may spend an equal share of what is left when its turn comes, so that what one leaves over is for those
    after it, and none is starved by those before it.
    """

    def __init__(self, seconds: float | None, problems: int, spent: Callable[[], float]):
        self._seconds, self._left, self._spent = seconds, problems, spent
        self._until = float("inf")

    def next_problem(self) -> None:
        """The next problem's turn begins."""
        if self._seconds is not None:
            spent = self._spent()
            self._until = spent + max(0.0, self._seconds - spent) / max(1, self._left)
            self._left -= 1

    @property
    def over(self) -> bool:
        """Whether this problem's share is used up."""
        return self._spent() >= self._until
