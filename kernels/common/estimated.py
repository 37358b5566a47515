"""The choice of a config by an estimate of how long each takes: what runs by default, and what is worth a trial.

Shapes are many and tuned cases few, so one estimate serves them all.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atlas.declaration import GPU, Case, Config


@dataclass(frozen=True, eq=False)
class Estimated:
    """The configs of ``space``, each with the ``microseconds`` that it should take: infinite if it does not run.

    ``wasteful`` says why a config is not worth an estimate, "" where it is.  A config that should take no more than
    ``near`` times the shortest is worth a trial.
    """

    space: Mapping[str, tuple[int, ...]]
    microseconds: Callable[[Config, Case, GPU], float]
    wasteful: Callable[[Config, Case, GPU], str]
    near: float

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - a module has one for each of its variants, and keeps it
    def _best(self, problem: Case, gpu: GPU) -> tuple[float, tuple[int, ...]]:
        """The shortest time, and the values of its config; of equal times the first of the values in order."""
        configs = ((values, self._config(values)) for values in itertools.product(*self.space.values()))
        found = (
            (self.microseconds(config, problem, gpu), values)
            for values, config in configs
            if not self.wasteful(config, problem, gpu)
        )
        return min(found, default=(math.inf, tuple(values[0] for values in self.space.values())))

    def _config(self, values: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self.space, values, strict=True))

    def shortest(self, problem: Case, gpu: GPU) -> float:
        """The time of the config that should end first; infinite where none runs."""
        return self._best(problem, gpu)[0]

    def default(self, problem: Case, gpu: GPU) -> dict[str, int]:
        """The config that should end first."""
        return self._config(self._best(problem, gpu)[1])

    def fits(self, config: Config, problem: Case, gpu: GPU) -> str:
        """Why a config cannot be the best; "" for one worth a trial."""
        if reason := self.wasteful(config, problem, gpu):
            return reason
        late = self.microseconds(config, problem, gpu) > self.near * self.shortest(problem, gpu)
        return "others should end sooner" if late else ""
