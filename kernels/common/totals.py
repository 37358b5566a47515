"""The loss out of what programs have left of rows: sums of losses, then of what the mean divides by, [2, parts]."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .early import launch_early


@triton.jit
def write_total(total, divisor, loss_ptr, scale_ptr, MEAN: tl.constexpr, TOTAL: tl.constexpr):
    """Write scale = 1 / (sum of divisors) for the MEAN, else 1; with TOTAL the loss as well, the scaled sum."""
    scale = 1.0
    if MEAN:
        scale = 1.0 / tl.sum(divisor, axis=0).to(tl.float32)
    tl.store(scale_ptr, scale)
    if TOTAL:
        tl.store(loss_ptr, tl.sum(total, axis=0) * scale)


@triton.jit
def together_kernel(
    parts_ptr, loss_ptr, scale_ptr, parts,
    MEAN: tl.constexpr, TOTAL: tl.constexpr, COUNTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program owns all parts.  COUNTS: the mean divides by numbers of rows, which are added up as integers.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    if EARLY:
        gdc_wait()
    total, divisor = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.int32 if COUNTS else tl.float32)
    for start in tl.range(0, parts, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        if TOTAL:
            total += tl.load(parts_ptr + offs, mask=offs < parts, other=0.0)
        if MEAN:
            divisor += tl.load(parts_ptr + parts + offs, mask=offs < parts, other=0.0).to(divisor.dtype)
    write_total(total, divisor, loss_ptr, scale_ptr, MEAN, TOTAL)


@triton.jit
def _fold_kernel(parts_ptr, folded_ptr, parts, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """One program owns BLOCK of the parts [2, parts]: their sums, to [2, programs]."""
    if EARLY:
        gdc_wait()
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    for i in tl.static_range(2):
        part = tl.load(parts_ptr + i * parts + offs, mask=offs < parts, other=0.0)
        tl.store(folded_ptr + i * tl.num_programs(0) + pid, tl.sum(part, axis=0))


_MOST = 2**14
"""Parts that one program sums: one SM of an H200 reads some 50 bytes of them in a nanosecond."""

_FOLDED = 2048
"""Parts of a program where they are more."""


def folded(parts, count):
    """(parts, how many) that are no more than one program sums: these, or sums of ``_FOLDED`` of them each."""
    if count <= _MOST:
        return parts, count
    fewer = triton.cdiv(count, _FOLDED)
    sums = torch.empty(2 * fewer, dtype=torch.float32, device=parts.device)
    launch_early(_fold_kernel, (fewer,), parts.device, parts, sums, count, BLOCK=_FOLDED, num_warps=8)
    return sums, fewer
