"""The time a search may take, shared out over its problems."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self


class Budget:
    """``seconds`` of the devices in all for ``problems`` problems, or without limit (None).

    Each problem may spend an equal share of what nobody has spent or is entitled to when its turn comes, so that what
    one leaves over is for those after it, and none is starved by those before it or beside it.  What is left over in
    the end is for those whose share was too small (:meth:`rest`): the first one's pays for what a device does once.
    """

    def __init__(self, seconds: float | None, problems: int):
        self._seconds, self._waiting = seconds, problems
        self._spent = 0.0
        self._reserved = 0.0
        self._cut_short = 0
        self._turn = threading.Lock()

    def share(self, spent: Callable[[], float]) -> Share:
        """The next problem's turn begins; ``spent`` tells the seconds its device has spent so far."""
        with self._turn:
            allotted = self._reserve(self._waiting)
            self._waiting -= 1
        return Share(self, allotted, spent)

    def rest(self, spent: Callable[[], float]) -> Share:
        """Another turn of a problem whose share was used up: of what is left, as much as others like it get."""
        with self._turn:
            allotted = self._reserve(self._waiting + self._cut_short)
            self._cut_short -= 1
        return Share(self, allotted, spent, is_last=True)

    def _reserve(self, claims: int) -> float:
        if self._seconds is None:
            return float("inf")
        allotted = max(0.0, self._seconds - self._spent - self._reserved) / max(1, claims)
        self._reserved += allotted
        return allotted

    def _end(self, allotted: float, spent: float, done: bool, is_last: bool) -> None:
        with self._turn:
            self._spent += spent
            if self._seconds is not None:
                self._reserved -= allotted
            if not is_last:
                self._waiting += not done
                self._cut_short += done and spent >= allotted


class Share:
    """One problem's part of a budget, from now on; a context manager, whose end settles what was spent.

    Left by an exception the problem counts as waiting again.
    """

    def __init__(self, budget: Budget, allotted: float, spent: Callable[[], float], is_last: bool = False):
        self._budget, self._allotted, self._total, self._is_last = budget, allotted, spent, is_last
        self._before = spent()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._budget._end(self._allotted, self.spent, done=kind is None, is_last=self._is_last)

    @property
    def spent(self) -> float:
        """Seconds of this problem so far."""
        return self._total() - self._before

    @property
    def over(self) -> bool:
        """Whether this problem's share is used up."""
        return self.spent >= self._allotted
