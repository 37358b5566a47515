"""Which dtypes of a case the interpreter checks: one in turn, for sizes and not dtypes are what most faults hang on."""

from __future__ import annotations

from collections.abc import Sequence

from ..declaration import GPU, Case, Pass
from .cases import interpreter_cost, small_cases


def in_turn(work: Pass, cases: Sequence[Case], gpu: GPU, start: int = 0) -> list[Case]:
    """Of ``cases`` those to check, in their order.

    The small case of every dtype.  Of other sizes one dtype: in turn, from the ``start``-th on, of those that most
    variants take; and a further one where a variant takes that alone.  At last, for a variant that has not met a dtype,
    the cheapest case of that dtype that it takes.
    """
    takers = {case: {one.name for one in work.variants if not one.unsupported(case, gpu)} for case in cases}
    kept = set(small_cases(work, cases))
    for position, alike in enumerate(_by_sizes(cases), start):
        first = position % len(alike)
        met = {name for case in kept.intersection(alike) for name in takers[case]}
        for case in sorted((*alike[first:], *alike[:first]), key=lambda case: -len(takers[case])):
            if takers[case] - met or kept.isdisjoint(alike):
                kept.add(case)
                met |= takers[case]
    pairs = {(name, case.dtype) for case in kept for name in takers[case]}
    for case in sorted(cases, key=lambda case: interpreter_cost(work, case)):
        own = {(name, case.dtype) for name in takers[case]}
        if own - pairs:
            kept.add(case)
            pairs |= own
    return [case for case in cases if case in kept]


def _by_sizes(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases of equal sizes together, as they come."""
    found: dict[tuple, list[Case]] = {}
    for case in cases:
        found.setdefault(case.sizes, []).append(case)
    return list(found.values())
