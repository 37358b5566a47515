"""Draw cases of a kernel by a seed: from its domain, or around its own cases where it has none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from random import Random

from ..declaration import GPU, Case, Declaration, likeness
from ..declaration.timings import Timed
from ..host import runtime
from ..validation.cases import INTERPRETER_LIMIT, interpreter_cost
from . import domains

MOST_BYTES = 4 * 2**30
"""Of a case's least traffic; what is larger is drawn again."""

_ATTEMPTS = 200
_CROWD, _MOST = 32, 400
"""Cases that are drawn for one that is kept, and most in all, to cover a domain."""

_REACH = 1.5
"""Doublings over which what won at one case is of use at another.

On the H200's records what won within one doubling is 5.9 % behind at the 95th percentile, within two 17 %."""

_DOUBLINGS = 2.0
"""Of a size, up or down, around a kernel's own cases."""
_SMALL = 16
"""Sizes below this stay as they are: they are counts of things, and flags."""


def drawn(declaration: Declaration, gpu: GPU, seed: int, count: int, most_bytes: float = MOST_BYTES) -> list[Case]:
    """So many different cases, or as many as there are; the same for the same seed.

    ``most_bytes`` limits the forward pass's least traffic, as does a sixteenth of the GPU's memory.
    """
    random, found = Random(f"{seed} {declaration.name}"), []
    for _ in range(_ATTEMPTS * max(1, count // 8)):
        if len(found) == count:
            break
        one = _one(declaration, gpu, random)
        if one is not None and one not in found and _affordable(declaration, gpu, one, most_bytes):
            found.append(one)
    return found


def covering(
    declaration: Declaration, gpu: GPU, seed: int, count: int, known: Collection[Case], most_bytes: float = MOST_BYTES
) -> list[Case]:
    """Cases near which most calls of the domain lie that are near none of ``known``; the same for the same seed.

    Many are drawn, as calls come.  One after the other the one is kept that reaches most of those not reached before.
    """
    drawing = max(2 * count, min(_CROWD * count, _MOST))
    crowd = [one for one in drawn(declaration, gpu, seed, drawing, most_bytes) if one not in known]
    reaches = {one: [reach(one, other) for other in crowd] for one in crowd}
    reached = [max((reach(one, other) for other in known), default=0.0) for one in crowd]
    found: list[Case] = []
    while len(found) < count and reaches:
        more = {one: sum(map(max, own, reached)) for one, own in reaches.items()}
        best = max(more, key=more.__getitem__)
        reached = list(map(max, reaches.pop(best), reached))
        found.append(best)
    return found


def reach(one: Case, other: Case) -> float:
    """How far what is fast at one case is so at the other, from 0 to 1: of the same flags, within few doublings.

    What 16 bits of one kind like, those of the other do; of other widths it says little.
    """
    if one.dtype != other.dtype and not {one.dtype, other.dtype} <= {"bf16", "fp16"}:
        return 0.0
    near = likeness.near(one.dtype, dict(one.sizes), Timed(other.dtype, dict(other.sizes), 0, {}))
    return math.exp(-((likeness.REACH * math.log(near) / _REACH) ** 2))


def _one(declaration: Declaration, gpu: GPU, random: Random) -> Case | None:
    """A case of the domain; near one of the sweep where there is none, near an edge case for the interpreter."""
    if declaration.name in domains.DOMAINS and not gpu.functional:
        return domains.drawn(declaration.name, random)
    around = random.choice(declaration.edge_cases if gpu.functional else runtime.sweep(declaration, gpu))
    sizes = tuple(_resized(around.sizes, random))
    return dataclasses.replace(around, sizes=sizes, reason="")


def _resized(sizes: Sequence[tuple[str, object]], random: Random) -> Iterator[tuple[str, object]]:
    """Sizes that were equal stay equal, and mostly those that were multiples of 8 or 128."""
    resized: dict[int, int] = {}
    for name, value in sizes:
        if isinstance(value, bool) or not isinstance(value, int) or value < _SMALL:
            yield name, value
            continue
        if value not in resized:
            unit = next(unit for unit in (128, 8, 1) if value % unit == 0)
            unit = unit if random.random() < 0.75 else 1
            resized[value] = max(unit, round(value * 2 ** random.uniform(-_DOUBLINGS, _DOUBLINGS) / unit) * unit)
        yield name, resized[value]


def _affordable(declaration: Declaration, gpu: GPU, case: Case, most_bytes: float) -> bool:
    """Whether inputs of the case can be drawn, some variant takes it, and it is small enough."""
    work = declaration.forward
    try:
        traffic = sum(work.bytes(case).values())
        if not 0 < traffic <= min(most_bytes, gpu.memory_bytes // 16):
            return False
        runtime.meta_inputs(work, case)
        if gpu.functional and interpreter_cost(work, case) > INTERPRETER_LIMIT:
            return False
    except Exception:  # whatever a declaration makes of sizes that do not go together
        return False
    return any(not variant.unsupported(case, gpu) for variant in work.variants)
