"""Which cases, seeds and configs are checked where: all that a GPU can hold, what the interpreter can afford."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..declaration import GPU, Case, Declaration, Pass, Variant, element_size
from ..host.runtime import sweep

INPUT_LIMIT = 2**30
"""Bytes: a sweep case of more traffic than this is benchmarked but not validated."""

FLOP_LIMIT = 2e12
"""A reference of more arithmetic takes seconds in float64 even on GPUs that are good at it."""

INTERPRETER_LIMIT = 4e6
"""Bytes, plus a sixteenth of the flops: about a second of one launch on the interpreter, program after program."""

INTERPRETER_SECONDS = 6.0
"""CPU time after which the interpreter checks no further seeds; the first seed of every case is always checked."""

# A float64 reference holds inputs, outputs and some intermediates of the inputs' size.
_REFERENCE_COPIES = 6


def interpreter_cost(work: Pass, case: Case) -> float:
    """What a launch costs the interpreter, in bytes of traffic: flops count a sixteenth, since NumPy is good at dot."""
    return sum(work.bytes(case).values()) + sum(work.flops(case).values()) / 16


def too_costly(work: Pass, case: Case, gpu: GPU, device: torch.device | None) -> str:
    """Why this case is left out on this device, or ``""``; without a device its free memory does not count."""
    traffic, flops = sum(work.bytes(case).values()), sum(work.flops(case).values())
    if gpu.functional:
        cost = interpreter_cost(work, case)
        return f"costs the interpreter {cost:.2g}, limit {INTERPRETER_LIMIT:.2g}" if cost > INTERPRETER_LIMIT else ""
    if traffic > INPUT_LIMIT:
        return f"{traffic / 2**20:.0f} MiB of traffic, limit {INPUT_LIMIT / 2**20:.0f}"
    if flops > FLOP_LIMIT:
        return f"{flops:.2g} flops in float64, limit {FLOP_LIMIT:.2g}"
    if device is None:
        return ""
    # Not what is free at the moment, which hangs on what else this job runs beside it.
    needed, there = reference_bytes(work, case), torch.cuda.mem_get_info(device)[1]
    if needed > there:
        return f"the float64 reference needs about {needed / 2**30:.1f} GiB, the GPU has {there / 2**30:.1f} GiB"
    return ""


def reference_bytes(work: Pass, case: Case) -> float:
    """Device memory that a case with its float64 reference takes, about."""
    return _REFERENCE_COPIES * 8 * sum(work.bytes(case).values()) / element_size(case.dtype)


def candidates(declaration: Declaration, gpu: GPU) -> list[Case]:
    """Every case that might be checked: the edge cases, and on a GPU the sweep, without repetition."""
    return list(dict.fromkeys([*declaration.edge_cases, *([] if gpu.functional else sweep(declaration, gpu))]))


def small_cases(work: Pass, cases: Iterable[Case]) -> list[Case]:
    """Of each dtype the case to try hard inputs on: the cheapest in which every size is at least 3.

    Several rows and columns, so that a planted NaN does not reach everywhere; cheap, since it is run many times.
    """
    chosen: dict[str, Case] = {}
    for case in sorted(
        cases, key=lambda c: (min(sizes_of(c), default=0) < 3, interpreter_cost(work, c) + _programs(c))
    ):
        if sum(work.bytes(case).values()):
            chosen.setdefault(case.dtype, case)
    return list(chosen.values())


def sizes_of(case: Case) -> list[int]:
    """The case's sizes without its flags."""
    return [value for _, value in case.sizes if isinstance(value, int) and not isinstance(value, bool)]


def _programs(case: Case) -> float:
    """What the programs of a launch cost the interpreter, as bytes, if one program owns the last size."""
    return 2048.0 * math.prod(sizes_of(case)[:-1])


def evenly_spaced(variant: Variant, case: Case, gpu: GPU, count: int) -> list[dict[str, Any]]:
    """At most ``count`` configs from all over the space, the same ones each time."""
    configs = list(variant.configs(case, gpu))
    if gpu.functional:  # the interpreter knows neither warps nor stages: configs that differ in them alone are one
        configs = list({_shape(config): config for config in configs}.values())
    if len(configs) <= count:
        return configs
    return [configs[round(i * (len(configs) - 1) / (count - 1))] for i in range(count)]


def _shape(config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in config.items() if key not in ("num_warps", "num_stages", "num_ctas"))
