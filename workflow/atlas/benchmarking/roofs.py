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

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..declaration import Case, Pass
from ..host import runtime

MIXES = {"read": 0.0, "elementwise": 1 / 3, "copy": 1 / 2, "write": 1.0}
"""Memory roofs of the survey, and the share of their bytes that is written."""

MATMULS = {"fp8e4m3": "matmul_fp8", "fp8e5m2": "matmul_fp8"} | {
    dtype: f"matmul_{dtype}" for dtype in ("fp32", "tf32", "fp16", "bf16", "int8")
}
"""The matmul roof of each dtype; ``tf32`` is fp32 data multiplied by tensor cores, ``fp32`` is IEEE arithmetic."""

TOLERANCE = 0.01
"""How far beyond its roof a figure may be."""


@dataclass(frozen=True)
class Cost:
    """The least work of one call: bytes read and written, of which ``written``, and operations."""

    bytes: float
    written: float
    flops: float


@dataclass(frozen=True)
class Survey:
    """The roofs a survey document found, in GB/s and TFLOP/s by name, and the size of L2."""

    roofs: Mapping[str, float]
    l2_bytes: float = 0.0

    @staticmethod
    def of(document: Mapping[str, Any]) -> Survey:
        """The roofs of a document that have a value."""
        values = {row["name"]: row["value"] for row in document["roofs"] if row["value"]}
        return Survey(values, document["properties"].get("l2_bytes") or 0.0)


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
    matmul = MATMULS.get(dtype, "")
    if spent.flops and matmul in survey.roofs:
        times[matmul] = spent.flops / (1e6 * survey.roofs[matmul])
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
