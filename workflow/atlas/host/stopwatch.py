"""Where a stage's seconds go: a stopwatch that is told what begins, and adds up what each phase took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Wall seconds by phase; one phase runs at a time, and ``""`` is none."""

    seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = ""
    _since: float = 0.0

    def enter(self, phase: str) -> None:
        """End the phase that runs and begin another, or go on with it where it has run before."""
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def rounded(self) -> dict[str, float]:
        """The seconds as documents state them; what has not ended counts up to now."""
        self.enter(self._phase)
        return {phase: round(seconds, 3) for phase, seconds in self.seconds.items()}
