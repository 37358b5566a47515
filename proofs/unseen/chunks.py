"""Calls in chunks: one is prepared by workers, and timed when they are gone, as many chunks as the time allows."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlas.host.progress import progress
from atlas.host.stopwatch import Stopwatch
from atlas.results.verdict import geometric_mean
from atlas.validation.device import DeviceLost
from atlas.workers.process import NotEnded

from .calls import Call, Kept, failed

Tell = Callable[[Call, int], None]
_FEW = 4
"""No chunk is begun for fewer calls than this, where there are more."""
_CALL_SECONDS = 2.0
"""What timing a call takes, the compilers' hits in their caches included, as long as none was timed."""


class Ended(BaseException):
    """SIGTERM: what is measured so far is to be told."""


@contextlib.contextmanager
def told_to_end() -> Iterator[None]:
    """Inside, SIGTERM raises :class:`Ended` in the body."""

    def ring(signum: int, stack: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class Chunks:
    """Who goes through calls until ``ends``, a time of ``now``.

    ``prepare(calls, wanted, left, tell)`` returns those that it prepared, as :class:`~.ahead.Workers` does;
    ``measure(call)`` is its row, or None.
    """

    prepare: Callable[[Sequence[Call], int, Callable[[int], float], Tell], list[Call]]
    measure: Callable[[Call], dict[str, Any] | None]
    kept: Kept
    ends: float
    spare: int = 32
    """Calls of later chunks that are prepared while a chunk's last ones are."""
    now: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    watch: Stopwatch = field(default_factory=Stopwatch)
    notes: list[str] = field(default_factory=list)
    _timing: float = _CALL_SECONDS
    _whole: float = 0.0

    def run(self, rounds: Sequence[Sequence[Call]]) -> None:
        """Go through what is not kept yet, a round first and then two at a time; ``notes`` say what was not begun."""
        calls = [call for one in rounds for call in one]
        waiting = [call for call in calls if call not in self.kept]
        if len(waiting) < len(calls):
            self.say(f"{len(calls) - len(waiting)} of {len(calls)} calls were timed before")
        size = max(map(len, rounds), default=0)
        try:
            with told_to_end():
                while waiting and (wanted := self._fitting(min(size, len(waiting)))):
                    timed = self._chunk(waiting, wanted, calls)
                    waiting = [call for call in waiting if call not in timed]
                    size = 2 * max(map(len, rounds))
                    if not timed:
                        break
        except Ended:
            self.notes.append("ended by SIGTERM")
        except DeviceLost as lost:
            self.notes.append(f"the device was lost: {lost}; start again with the same scratch folder")
        except NotEnded as stuck:  # beside such a worker nothing may be timed
            self.notes.append(f"{stuck}; start again with the same scratch folder")
        self.watch.enter("")
        left = sum(call not in self.kept for call in calls)
        if left:
            self.notes.append(f"out of time: {left} of {len(calls)} calls were not begun")

    def _fitting(self, wanted: int) -> int:
        """How many calls end in time by what the last chunk took for each."""
        left = self.ends - self.now()
        fits = wanted if not self._whole else min(wanted, int(left / self._whole))
        return fits if left > 0 and fits >= min(_FEW, wanted) else 0

    def _chunk(self, waiting: Sequence[Call], wanted: int, calls: Sequence[Call]) -> list[Call]:
        """The calls that were timed."""
        began = self.now()
        self.watch.enter("prepare")
        with progress() as shown:
            bar = shown.add_task("prepare", total=wanted, note="starting workers")
            ready = self.prepare(
                waiting[: wanted + self.spare], wanted, lambda done: self.ends - self.now() - done * self._timing,
                lambda call, done: shown.update(bar, completed=done, note=str(call)),
            )  # fmt: skip
        between = self.now()
        self.say(f"prepared {len(ready)} calls in {between - began:.0f} s")
        timed = self._timed(ready)
        ended = self.now()
        if timed:
            self._timing = (ended - between) / len(timed)
            self._whole = (ended - began) / len(timed)
        ratios = [row["ratio"] for row in self.kept.rows(calls) if row["ratio"]]
        mean = f"{geometric_mean(ratios):.3f}" if ratios else "none"
        self.say(f"timed {len(timed)} in {ended - between:.0f} s; geometric mean of {len(ratios)} so far: {mean}")
        return timed

    def _timed(self, ready: Sequence[Call]) -> list[Call]:
        timed: list[Call] = []
        with progress() as shown:
            bar = shown.add_task("time", total=len(ready), note="warming up")
            for call in ready:
                if self.now() + (self._timing if timed else 0) > self.ends:
                    break
                shown.update(bar, note=str(call))
                try:
                    row = self.measure(call)
                except DeviceLost as lost:
                    self.kept.put(call, failed(call, f"the device was lost: {lost}"))
                    raise
                self.kept.put(call, row)
                timed.append(call)
                shown.advance(bar)
        return timed
