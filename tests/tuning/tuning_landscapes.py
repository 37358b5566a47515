"""Spaces of known shape under a clock's noise, to judge search strategies by."""

import itertools
import math
import random

import numpy as np
from atlas.declaration import case
from atlas.tuning.candidates import Candidate, Problem
from atlas.tuning.outcome import Outcome

AXES = {
    "BLOCK_M": (16, 32, 64, 128, 256, 512),
    "BLOCK_N": (16, 32, 64, 128, 256, 512),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6),
}
STEP_US = 0.032
"""The resolution of CUDA's event times on an H200."""


def configs():
    """The 1080 configs of the space."""
    return [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


def landscape(seed, least_us=100.0):
    """Microseconds of each config, None where it cannot launch; smooth but for a cliff where registers spill.

    The seed decides where the optimum is, how steep the slopes are and how the tiles' shape matters.
    """
    luck = random.Random(seed)
    m, n, warps, stages = luck.uniform(5, 7.5), luck.uniform(5, 7.5), luck.uniform(1.5, 3), luck.uniform(2, 4.5)
    steep = [luck.uniform(0.5, 1.5) for _ in range(5)]

    def time_us(config):
        x, y = math.log2(config["BLOCK_M"]), math.log2(config["BLOCK_N"])
        if 2 * 64 * (2**x + 2**y) * config["num_stages"] > 232448:
            return None
        slow = 0.05 * steep[0] * (x - m) ** 2 + 0.05 * steep[1] * (y - n) ** 2 + 0.03 * steep[2] * (x - m) * (y - n)
        slow += 0.08 * steep[3] * (math.log2(config["num_warps"]) - warps) ** 2
        slow += 0.02 * steep[4] * (config["num_stages"] - stages) ** 2
        spills = 2 ** (x + y) / (32 * config["num_warps"]) > 256
        return math.exp(slow) * (3 if spills else 1)

    times = {Candidate.of("tiled", config): time_us(config) for config in configs()}
    fastest = min(t for t in times.values() if t is not None)
    return {candidate: t and least_us * t / fastest for candidate, t in times.items()}


def crowded(seed, least_us, count=45):
    """Times of so many configs as the H200's records have them: 3 within 1 % of the best, a third within 10 %."""
    luck = np.random.default_rng(seed)
    above = np.concatenate(
        [[0.0], luck.uniform(0, 0.01, 2), luck.uniform(0.01, 0.1, count // 3), luck.uniform(0.1, 1.2, count)]
    )
    return {Candidate.of("v", {"i": int(i)}): least_us * (1 + above[i]) for i in luck.permutation(count)}


def problem_of(times, name="n", size=1):
    """The landscape as a problem; its default is its first config."""
    candidates = tuple(times)
    return Problem(
        "forward", case("bf16", **{name: size}), candidates, frozenset(candidates[:1]), candidates[0], len(times)
    )


def samples(time_us, count, luck):
    """So many samples as an H200's clock gives them.

    The spread is that of the H200's record: quartiles 0.4 us apart for a kernel of 4 us, 1.3 us for one of 100 us.
    A batch has 0.3 % in common, 2 % of the samples are late, and all are multiples of the timer's step.
    """
    centre = time_us * (1 + 0.003 * luck.standard_normal())
    found = centre + (0.3 + 0.006 * time_us) * luck.standard_normal(count)
    late = luck.random(count) < 0.02
    found = np.where(late, found * (1 + luck.exponential(0.3, count)), found)
    return tuple(float(x) for x in np.maximum(np.round(found / STEP_US), 1) * STEP_US)


class Noisy:
    """Measures a landscape with noise; counts the samples."""

    def __init__(self, times, seed):
        self.times, self.luck = times, np.random.default_rng(seed)
        self.screened = []
        self.screening = 0  # samples, those of the finals apart
        self.elapsed_seconds = 0.0

    def next_of(self, problem, pending):
        return pending[0]

    def timed(self, candidate, count, limit_us=None):
        time_us = self.times[candidate]
        if time_us is None:
            return Outcome("out_of_resources", "out of resource: shared memory")
        found = samples(time_us, count, self.luck)
        if limit_us is not None and found[0] > limit_us:
            found = found[:1]
        q1, median, q3 = np.quantile(found, (0.25, 0.5, 0.75))
        status = "stopped" if len(found) < count else "ok"
        return Outcome(status, "", float(median), float(q1), float(q3), len(found), samples_us=found)

    def screen(self, problem, candidate, samples, limit_us):
        self.screened.append((candidate, samples))
        outcome = self.timed(candidate, samples, limit_us)
        self.screening += outcome.samples
        return outcome

    def check(self, problem, candidate):
        return Outcome("ok")

    def certify(self, problem, candidate):
        return Outcome("ok")

    def final(self, problem, finalists):
        return {candidate: self.timed(candidate, 100) for candidate in finalists}

    def regret(self, found):
        """How much slower the winner is than the fastest there is."""
        return self.times[found.ranking[0]] / min(t for t in self.times.values() if t is not None) - 1
