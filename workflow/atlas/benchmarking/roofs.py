"""Which measured roof binds a case, how much of it a figure reaches, and when a figure cannot be.

*Binding roof.*  Of bytes over bandwidth and operations over matmul rate the one that takes longer.  Bandwidth depends
on the mix of reads and writes, so the memory roof is the one whose share of written bytes is nearest to the case's;
what of a pass's traffic counts as written, :func:`cost` says.

*Gate.*  Samples start with an L2 full of other data, so inputs come from memory.  What is written, though, may still
be in L2 when the sample ends: up to a cache full of written bytes need not have reached memory yet.  The gate leaves
``min(written, L2)`` out of a case's bytes, and takes the bandwidth of the mix that remains, interpolated between the
measured mixes.  A figure more than 1 % beyond that is ``suspect``.  The fraction shown counts all bytes, so in cases
of a few L2 sizes it may pass 1 a little without being suspect.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..declaration import Case, Pass
from ..host import runtime
from ..results.surveyed import MIXES, Survey, matmuls_of, with_bf16x6

TOLERANCE = 0.01
"""How far beyond its roof a figure may be."""


@dataclass(frozen=True)
class Cost:
    """The least work of one call: bytes read and written, of which ``written``, and operations."""

    bytes: float
    written: float
    flops: float


@dataclass(frozen=True)
class Bound:
    """The roof that binds a case, the microseconds a call takes there, and those that no call can go under."""

    roof: str
    roof_us: float
    least_us: float


def cost(work: Pass, case: Case) -> Cost:
    """What a case costs at least, by the pass's own terms.

    A term named as an output is written.  Where every output has such a term all else is read.  Where one has none, a
    term that names no input stands for it, as ``dx`` does for what a loss leaves in ``saved``.  In a backward pass a
    term may name a tensor for its gradient (``q`` for ``dq``).  ``a, da`` are two tensors of one size.
    """
    terms = work.bytes(case)
    if set(work.outputs) <= terms.keys():
        written = sum(value for name, value in terms.items() if name in work.outputs)
    else:
        read = runtime.meta_inputs(work, case).keys()
        written = sum(value * _written_share(name, work.outputs, read) for name, value in terms.items())
    return Cost(float(sum(terms.values())), float(written), float(sum(work.flops(case).values())))


def _written_share(term: str, outputs: Collection[str], inputs: Collection[str]) -> float:
    """Of a term's bytes, by the tensors that it names."""
    names = term.split(", ")
    return sum(_is_written(name, outputs, inputs) for name in names) / len(names)


def _is_written(name: str, outputs: Collection[str], inputs: Collection[str]) -> bool:
    if name in outputs or name in inputs:
        return name in outputs
    return f"d{name}" not in inputs


def bound(spent: Cost, dtype: str, survey: Survey) -> Bound | None:
    """The bound of a case; None where the survey has no roof for it or it costs nothing."""
    times: dict[str, float] = {}
    least: list[float] = []
    known = {MIXES[name]: name for name in sorted(MIXES, key=MIXES.__getitem__) if name in survey.roofs}
    if known and spent.bytes:
        near = known[min(known, key=lambda mix: abs(mix - spent.written / spent.bytes))]
        times[near] = spent.bytes / (1e3 * survey.roofs[near])
        kept = min(spent.written, survey.l2_bytes)
        bandwidths = [survey.roofs[name] for name in known.values()]
        if spent.bytes > kept:
            mix = (spent.written - kept) / (spent.bytes - kept)
            least.append((spent.bytes - kept) / (1e3 * float(np.interp(mix, list(known), bandwidths))))
    roofs = with_bf16x6(survey.roofs)
    rates = {name: roofs[name] for name in matmuls_of(dtype) if name in roofs}
    if spent.flops and rates:
        matmul = max(rates, key=rates.__getitem__)
        times[matmul] = spent.flops / (1e6 * rates[matmul])
        least.append(times[matmul])
    if not times:
        return None
    roof = max(times, key=times.__getitem__)
    return Bound(roof, times[roof], max(least, default=0.0))


def beyond(median_us: float, limit: Bound | None) -> str:
    """Why a figure cannot be, or ``""``."""
    if limit is None or median_us * (1 + TOLERANCE) >= limit.least_us:
        return ""
    return (
        f"{median_us:.4g} us is {limit.least_us / median_us - 1:.1%} faster than the roof {limit.roof} permits "
        f"({limit.least_us:.4g} us): the survey or the count of bytes and operations is wrong, or the work is not done"
    )
