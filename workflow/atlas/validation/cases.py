"""Which cases, seeds and configs are checked where: all that a GPU can hold, what the interpreter can afford."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..declaration import GPU, Case, Config, Declaration, Pass, Variant
from ..runtime import sweep

INPUT_LIMIT = 2**30
"""Bytes: a sweep case of more traffic than this is benchmarked but not validated."""

FLOP_LIMIT = 2e12
"""A reference of more arithmetic takes seconds in float64 even on GPUs that are good at it."""

# The interpreter runs programs one after another in NumPy.  In bytes of traffic, flops counted as below: a launch takes
# 0.01 to 0.1 s up to the second figure, where every seed is affordable, and about a second at the first.
INTERPRETER_LIMIT = 4e6
_INTERPRETER_ALL_SEEDS = 2.5e5

# A float64 reference holds inputs, outputs and some intermediates of the inputs' size.
_REFERENCE_COPIES = 6


def interpreter_cost(work: Pass, case: Case) -> float:
    """What a launch costs the interpreter, in bytes of traffic: flops count a sixteenth, since NumPy is good at dot."""
    return sum(work.bytes(case).values()) + sum(work.flops(case).values()) / 16


def too_dear(work: Pass, case: Case, gpu: GPU, device: torch.device) -> str:
    """Why this case is left out on this device, or ``""``."""
    traffic, flops = sum(work.bytes(case).values()), sum(work.flops(case).values())
    if gpu.functional:
        cost = interpreter_cost(work, case)
        return f"costs the interpreter {cost:.2g}, limit {INTERPRETER_LIMIT:.2g}" if cost > INTERPRETER_LIMIT else ""
    if traffic > INPUT_LIMIT:
        return f"{traffic / 2**20:.0f} MiB of traffic, limit {INPUT_LIMIT / 2**20:.0f}"
    if flops > FLOP_LIMIT:
        return f"{flops:.2g} flops in float64, limit {FLOP_LIMIT:.2g}"
    needed = _REFERENCE_COPIES * 8 * traffic / _itemsize(case)
    free = torch.cuda.mem_get_info(device)[0]
    if needed > free:
        return f"the float64 reference needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
    return ""


def _itemsize(case: Case) -> int:
    from ..declaration import element_size

    return element_size(case.dtype)


def candidates(declaration: Declaration, gpu: GPU) -> list[Case]:
    """Every case that might be checked: the edge cases, and on a GPU the sweep, without repetition."""
    return list(dict.fromkeys([*declaration.edge_cases, *([] if gpu.functional else sweep(declaration, gpu))]))


def seeds_for(work: Pass, case: Case, gpu: GPU, seeds: Iterable[int]) -> list[int]:
    """All seeds; on the interpreter fewer for dear cases: at least one, five times the cost a fifth of the seeds."""
    seeds = list(seeds)
    if not gpu.functional:
        return seeds
    share = _INTERPRETER_ALL_SEEDS / max(interpreter_cost(work, case), 1.0)
    return seeds[: max(1, min(len(seeds), round(len(seeds) * share)))]


def small_cases(work: Pass, cases: Iterable[Case]) -> list[Case]:
    """Of each dtype the case to try hard inputs on: the cheapest in which every size is at least 3.

    Several rows and columns, so that a planted NaN does not reach everywhere; cheap, since it is run many times.
    """
    chosen: dict[str, Case] = {}
    for case in sorted(cases, key=lambda c: (_smallest_size(c) < 3, interpreter_cost(work, c))):
        if sum(work.bytes(case).values()):
            chosen.setdefault(case.dtype, case)
    return list(chosen.values())


def _smallest_size(case: Case) -> int:
    return min((value for _, value in case.sizes if isinstance(value, int) and not isinstance(value, bool)), default=0)


def spread(variant: Variant, case: Case, gpu: GPU, count: int) -> list[dict[str, Any]]:
    """At most ``count`` configs from all over the space, the same ones each time."""
    configs = list(variant.configs(case, gpu))
    if gpu.functional:  # the interpreter knows neither warps nor stages: configs that differ in them alone are one
        configs = list({_shape(config): config for config in configs}.values())
    if len(configs) <= count:
        return configs
    return [configs[round(i * (len(configs) - 1) / (count - 1))] for i in range(count)]


def _shape(config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in config.items() if key not in ("num_warps", "num_stages", "num_ctas"))


def same_config(a: Config | None, b: Config | None) -> bool:
    """Equal as mappings, whatever their types."""
    return (None if a is None else dict(a)) == (None if b is None else dict(b))
