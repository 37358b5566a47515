"""Cases with a tensor of more than 2^31 elements, where an offset of 32 bits overflows.

They are too large for a float64 reference, so torch's own result at the case's dtype is what they are compared with,
piece by piece: one seed, the default config of every variant that takes the case.  An overflow is no matter of a
tolerance: it moves whole rows, or stores outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ..declaration import Case, Config, Pass, Variant
from . import device as devices
from . import tolerances, variants
from .findings import ERROR, Finding, Subject, judged, stated
from .guards import Guard, span, words
from .judging import Judgement, scale
from .patterns import Element
from .problems import Problem

_CHUNK = 2**26  # elements compared at a time: half a GiB for each float64 temporary
_SHOWN = 3
_ALLOWED = 3
"""Tolerances: one for torch and one for the variant, and half as much again for the largest of 2^31 differences, since
a tolerance is for the largest of thousands."""
_COPIES = 3.25
"""Of a case's traffic: inputs and their guarded copies, torch's outputs, a launch's outputs and the guarded ones that
take their place, a quarter for bands, scratch and the temporaries of torch's operation."""


def needed_bytes(work: Pass, case: Case) -> float:
    """Device memory that comparing this case takes at its peak, about."""
    return _COPIES * sum(work.bytes(case).values()) + 2**31


def left_out(work: Pass, case: Case, functional: bool, device: torch.device) -> str:
    """Why this case is not run on this device, or ``""``."""
    needed = needed_bytes(work, case) / 2**30
    if functional:
        return f"more than 2^31 elements: for a GPU with about {needed:.0f} GiB of free memory, not the interpreter"
    devices.release(device, always=True)
    free = torch.cuda.mem_get_info(device)[0] / 2**30
    return f"more than 2^31 elements: needs about {needed:.0f} GiB, {free:.0f} GiB are free" if needed > free else ""


class NotComparable(Exception):
    """Torch or a variant cannot run this case here for want of memory, so there is nothing to compare."""


def check(problem: Problem, chosen: list[tuple[Variant, Config]]) -> Iterator[Finding]:
    """Values, and stores outside, of each variant with its config, against torch at the same dtype.

    Raises :class:`NotComparable` where torch does not run the case.
    """
    if not chosen:
        return
    expected = problem.yardstick
    if expected is None:
        raise NotComparable("torch does not run this case, and it is too large for the float64 reference")
    for variant, config in chosen:
        subject = Subject(variant.name, problem.direction, problem.case, config)
        devices.release(problem.device, always=True)
        try:
            outputs, guard = variants.launch(problem, variant, config, run=0)
        except variants.LaunchFailed as error:
            if error.exhausted:
                raise NotComparable(f"variant {variant.name}: {error}") from None
            yield Finding(variants.VALUES, subject, ERROR, str(error), problem.seed)
            continue
        yield stated(variants.WRITTEN, subject, guard.overstepped(outputs, problem.work.outputs), problem.seed)
        yield stated(variants.UNCHANGED, subject, _changed(problem, guard), problem.seed)
        yield judged(variants.VALUES, subject, _judge(problem, outputs, expected), problem.seed)
        del outputs, guard


def _changed(problem: Problem, guard: Guard) -> str:
    for name, placed in guard.inputs.items():
        pairs = zip(_pieces(words(span(placed.tensor))), _pieces(words(span(problem.inputs[name]))), strict=True)
        if not all(torch.equal(after, before) for after, before in pairs):
            return f"input {name} is changed"
    return ""


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensor.reshape(-1).split(_CHUNK)


def _judge(problem: Problem, outputs: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> Judgement:
    work, case, worst = problem.work, problem.case, Judgement()
    for name, output, reference in zip(work.outputs, outputs, expected, strict=False):
        found = compare(name, output, reference, work.precision(case), work.reduction(case))
        worst = max(worst, found, key=lambda judgement: judgement.severity)
    return worst


def compare(name: str, output: torch.Tensor, expected: torch.Tensor, dtype: str, reduction: int) -> Judgement:
    """Compare with torch's result, itself rounded to the dtype, within :data:`_ALLOWED` tolerances.

    NaN must stand where torch has it, infinities likewise.
    """
    if output.shape != expected.shape:
        shapes = f"{name} has shape {tuple(output.shape)}, torch gives {tuple(expected.shape)}"
        return Judgement(shapes, tolerance_used=math.inf)
    rms, _ = scale(expected)
    kind = tolerances.governing(dtype, output.dtype)
    rtol = _ALLOWED * tolerances.rtol(kind)
    atol = _ALLOWED * tolerances.atol(kind, output.dtype, reduction, rms, output.numel())
    first, count, last, used, largest, position = [], 0, 0, 0.0, 0.0, 0
    for out, ref in zip(_pieces(output), _pieces(expected), strict=True):
        out, ref = out.double(), ref.double()
        same = (out == ref) | (out.isnan() & ref.isnan())
        error = torch.where(same, 0.0, (out - ref).abs())
        ratio = torch.where(same, 0.0, error / (rtol * ref.abs() + atol))
        wrong = ~(ratio <= 1)  # a NaN on one side only is wrong, too
        finite = error[error.isfinite()]
        largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
        used = max(used, float(ratio.nan_to_num(nan=math.inf).max()))
        hits = wrong.nonzero().flatten()
        if hits.numel():
            count, last = count + hits.numel(), position + int(hits[-1])
            for hit in hits[: _SHOWN - len(first)].tolist():
                at = _index(position + hit, output.shape)
                first.append(Element(name, at, out[hit].item(), ref[hit].item()))
        position += len(out)
    figures = {"max_abs_error": largest, "rtol": rtol, "atol": atol, "tolerance_used": used}
    if not count:
        return Judgement(**figures)
    start = _flat(first[0].index, output.shape)
    beyond = " (element 2^31 and later ones alone)" if start >= 2**31 else ""
    places = f"from element {start} to {last}, counted row by row{beyond}"
    reason = f"differs from torch in {count} of {output.numel()} elements, {places}: {'; '.join(map(str, first))}"
    return Judgement(reason, wrong=tuple(first), **figures)


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, within = divmod(flat, size)
        index.append(within)
    return tuple(reversed(index))


def _flat(index: tuple[int, ...], shape: torch.Size) -> int:
    flat = 0
    for at, size in zip(index, shape, strict=True):
        flat = flat * size + at
    return flat
