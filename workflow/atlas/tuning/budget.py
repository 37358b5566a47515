"""The time a search may take, shared out over its problems."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class Budget:
    """``seconds`` of the devices in all for ``problems`` problems, or without limit (None).

    Each problem may spend an equal share of what nobody has spent or is entitled to when its turn comes, so that what
    one leaves over is for those after it, and none is starved by those before it or beside it.
    """

    def __init__(self, seconds: float | None, problems: int):
        self._seconds, self._waiting = seconds, problems
        self._spent = 0.0
        self._reserved = 0.0
        self._turn = threading.Lock()

    def share(self, spent: Callable[[], float]) -> Share:
        """The next problem's turn begins; ``spent`` tells the seconds its device has spent so far."""
        with self._turn:
            allotted = float("inf")
            if self._seconds is not None:
                allotted = max(0.0, self._seconds - self._spent - self._reserved) / max(1, self._waiting)
                self._reserved += allotted
            self._waiting -= 1
        return Share(self, allotted, spent)

    def _end(self, allotted: float, spent: float, done: bool) -> None:
        with self._turn:
            self._spent += spent
            if self._seconds is not None:
                self._reserved -= allotted
            self._waiting += not done


class Share:
    """One problem's part of a budget, from now on; a context manager, whose end settles what was spent.

    Left by an exception the problem counts as waiting again.
    """

    def __init__(self, budget: Budget, allotted: float, spent: Callable[[], float]):
        self._budget, self._allotted, self._total = budget, allotted, spent
        self._before = spent()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._budget._end(self._allotted, self.spent, done=kind is None)

    @property
    def spent(self) -> float:
        """Seconds of this problem so far."""
        return self._total() - self._before

    @property
    def over(self) -> bool:
        """Whether this problem's share is used up."""
        return self.spent >= self._allotted
