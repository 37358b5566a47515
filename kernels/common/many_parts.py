"""Up to a hundred parts of a small product, added up by more programs than `parts` has for it."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .early import launch_early

_SMALL = 2**14
"""Elements of a sum up to which a program adds half as many."""


@triton.jit(do_not_specialize=["count"])
def _sum_many_kernel(
    parts_ptr, c_ptr, size, count, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """c = the sum over parts [count, size]: a program BLOCK elements, AT_ONCE parts at a time.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.  In parts each
    32 neighbours, (t, w, q, p), are in the order (w, q, t, p) of packed tiles.
    """
    if EARLY:
        gdc_wait()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, AT_ONCE)
    ptrs = parts_ptr + part.to(tl.int64)[:, None] * size + offs[None, :]
    acc = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for first in range(0, count, AT_ONCE):
        acc += tl.load(ptrs, mask=(part[:, None] < count - first) & (offs[None, :] < size), other=0.0)
        ptrs += tl.cast(size, tl.int64) * AT_ONCE
    total = tl.sum(acc, 0).reshape(BLOCK // 32, 4, 4, 2).permute(0, 2, 1, 3).reshape(BLOCK)
    tl.store(c_ptr + offs, total.to(c_ptr.dtype.element_ty), mask=offs < size)


def sum_many_parts(parts, c):
    """Write the sum of fp32 ``parts`` [count, *c's shape], columns in the order of packed tiles, into ``c``.

    Two calls agree bit by bit, since parts are added in one order.
    """
    at_once = 16 if parts.shape[0] <= 24 else 32
    block = (4096 if c.numel() > _SMALL else 2048) // at_once
    launch_early(
        _sum_many_kernel, (triton.cdiv(c.numel(), block),), c.device, parts, c, c.numel(), parts.shape[0],
        AT_ONCE=at_once, BLOCK=block, num_warps=4,
    )  # fmt: skip
