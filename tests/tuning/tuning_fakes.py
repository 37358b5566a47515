"""A kernel with a known cost, a clock that reads it, and configs that misbehave on demand.

Worker processes import this module by name, so everything they need is at module level.
"""

import functools
import os
import time

import torch
from atlas.declaration import GPU, Declaration, Pass, Variant, case, eager
from atlas.timing import Timing
from atlas.tuning import candidates
from atlas.tuning.worker import Setting

DEVICE = GPU("fake", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=2**37, l2_bytes=2**25)
TILES = (16, 32, 64, 128, 256, 512)
WARPS = (1, 2, 4, 8)
OPTIMUM = {"tile": 64, "warps": 4}
HANG_SECONDS = 600

_last_cost_us = 0.0
_launches = 0


def cost_us(config, n):
    """Convex in log2 of both parameters, least at OPTIMUM; the default takes 3 times as long."""
    steps = abs(TILES.index(config["tile"]) - 2) + 0.5 * abs(WARPS.index(config["warps"]) - 2)
    return 0.01 * n * (1 + 0.8 * steps)


def misbehave(fault, x):
    """What a launch may do instead of returning; returns the result of those that return one."""
    if fault == "hangs":
        time.sleep(HANG_SECONDS)
    elif fault == "exits":
        os._exit(3)
    elif fault == "raises":
        raise RuntimeError("invalid argument")
    elif fault == "needs too much memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
    elif fault == "is wrong":
        return x * 2 + 1
    elif fault == "hangs after a while":
        global _launches
        _launches += 1
        if _launches > 30:
            time.sleep(HANG_SECONDS)
    return x * 2


def launch(x, *, config, faults=()):
    """Doubles ``x``; ``faults`` are ((tile, warps), fault) pairs.  A wrong result is also by far the fastest."""
    global _last_cost_us
    fault = dict(faults).get((config["tile"], config["warps"]), "")
    _last_cost_us = 1e-3 if fault == "is wrong" else cost_us(config, x.numel())
    return misbehave(dict(faults).get("all", fault), x)


def declare(faults=(), sizes=(1000,), tiles=TILES):
    """The fake kernel's declaration."""
    work = Pass(
        inputs=lambda problem, device, generator: {"x": torch.rand(problem["n"], generator=generator) + 1},
        reference=lambda x: x * 2,
        outputs=("y",),
        variants=(
            Variant(
                name="plain",
                launch=functools.partial(launch, faults=faults),
                space={"tile": tiles, "warps": WARPS},
                default=lambda problem, gpu: {"tile": tiles[0], "warps": 2},
            ),
        ),
        peers={"torch": eager(lambda x: x * 2)},
        bytes=lambda problem: {"x": 4 * problem["n"]},
        flops=lambda problem: {"mul": problem["n"]},
    )
    cases = [case("fp32", n=n) for n in sizes]
    return Declaration(
        name="double", family="toys", summary="", function=lambda x: x * 2, call=None, dtypes=("fp32",),
        cases=lambda gpu: cases, edge_cases=(), forward=work,
    )  # fmt: skip


class SurfaceClock:
    """Calls the thunk and reports the cost it left behind, the more samples the less noise (under 1 %)."""

    def __init__(self, device):
        self.device = device

    def warm_up(self):
        pass

    def screen(self, thunk, samples=5, limit_us=None, most_seconds=1.0):
        thunk()
        samples = 1 if limit_us is not None and _last_cost_us > limit_us else samples
        noise = 1 + 0.01 / samples * ((hash(_last_cost_us) % 7) / 7)
        median = _last_cost_us * noise
        return Timing(median, 0.99 * median, 1.01 * median, (median,) * samples)

    def interleave(self, thunks, min_seconds, max_samples, min_samples, again):
        assert not again, "finalists are compared with one another alone: a throttled board is given no pause"
        return {name: self.screen(thunk, max_samples) for name, thunk in thunks.items()}


def cpu():
    return torch.device("cpu")


def setting(**declared):
    """What a worker needs to run the fake kernel."""
    return Setting(load=functools.partial(declare, **declared), device=cpu, clock=SurfaceClock)


def problems(ruling=None, **declared):
    """The fake kernel's problems."""
    return candidates.problems(declare(**declared), DEVICE, ruling or candidates.Ruling())
