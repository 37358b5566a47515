"""Products whose programs share K: how it is cut into parts, and the second kernel, which adds up what each left."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from .early import launch_early


@triton.jit
def _sum_kernel(parts_ptr, c_ptr, size, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """c = the sum over parts[PARTS, size], in their order: each program BLOCK elements.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    if EARLY:
        gdc_wait()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + offs, mask=offs < size, other=0.0)
        parts_ptr += size
    tl.store(c_ptr + offs, acc.to(c_ptr.dtype.element_ty), mask=offs < size)


def part_of_k(k, splits, block_k):
    """Elements of K that one of ``splits`` parts sums: whole blocks, so that only the last has a tail."""
    return triton.cdiv(triton.cdiv(k, block_k), splits) * block_k


def count_of_parts(k, config):
    """Parts that are not empty: of SPLITS, where K has so many blocks."""
    return triton.cdiv(k, part_of_k(k, config["SPLITS"], config["BLOCK_K"]))


def empty_parts(c, count):
    """Room for ``count`` parts of C [m, n], in fp32."""
    return torch.empty((count, *c.shape), dtype=torch.float32, device=c.device)


def launch_after_parts(kernel, parts, c, *args, **meta):
    """Launch ``kernel`` on blocks of 512 elements of ``c``, early where the GPU can, beside what writes ``parts``."""
    launch_early(
        kernel, (triton.cdiv(c.numel(), 512),), c.device, parts, *args, PARTS=parts.shape[0], BLOCK=512, num_warps=4,
        **meta,
    )  # fmt: skip


def sum_parts(parts, c):
    """Write the sum of fp32 ``parts`` [count, *c's shape] into ``c``, in their order; returns ``c``."""
    launch_after_parts(_sum_kernel, parts, c, c, c.numel())
    return c
