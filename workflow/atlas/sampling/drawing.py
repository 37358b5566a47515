"""Draw cases of a kernel by a seed: from its domain, or around its own cases where it has none."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from random import Random

from ..declaration import GPU, Case, Declaration, expected
from ..declaration.timings import Timed
from ..host import runtime
from ..validation.cases import INTERPRETER_LIMIT, interpreter_cost
from . import domains

MOST_BYTES = 4 * 2**30
"""Of a case's least traffic; what is larger is drawn again."""

_ATTEMPTS = 200
_CROWD = 6
"""Cases that are drawn for one that is kept, where they are to lie apart."""

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


def apart(
    declaration: Declaration, gpu: GPU, seed: int, count: int, known: Collection[Case], most_bytes: float = MOST_BYTES
) -> list[Case]:
    """Cases that lie apart from each other and from ``known`` ones: where little is known, more are drawn.

    Of several times as many the one farthest from all before, by luck as well, or they would lie on the domain's rim.
    """
    crowd = [one for one in drawn(declaration, gpu, seed, _CROWD * count, most_bytes) if one not in known]
    luck = Random(f"{seed} {declaration.name} luck")
    weights = {one: luck.random() for one in crowd}
    closest = {one: max((_near(one, other) for other in known), default=0.0) for one in crowd}
    found: list[Case] = []
    while len(found) < count and closest:
        best = max(closest, key=lambda one: (1 - closest[one]) * weights[one])
        del closest[best]
        found.append(best)
        closest = {one: max(near, _near(one, best)) for one, near in closest.items()}
    return found


def _near(one: Case, other: Case) -> float:
    return expected.near(one.dtype, dict(one.sizes), Timed(other.dtype, dict(other.sizes), 0, {}))


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
