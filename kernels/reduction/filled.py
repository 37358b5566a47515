"""Gradient of max along rows, or columns that are no whole 16-byte vectors: zeros as one line, then one of n elements.

A row's or column's dx is zero but in one place.  The program that fills a piece of dx with zeros, in whole vectors,
also writes the results that lie in it: nobody else writes there, so nobody waits.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from .results import vector_of


@triton.jit
def _filled_backward_kernel(indices_ptr, dout_ptr, dx_ptr, total, n, columns, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
                            RESULTS: tl.constexpr):  # fmt: skip
    """One program owns BLOCK vectors of WIDTH elements of matrices [n, columns]; RESULTS of these at once.

    dx has room for the last vector, whole.
    """
    start = tl.program_id(0).to(tl.int64) * (BLOCK * WIDTH)
    length = tl.minimum(total - start, BLOCK * WIDTH).to(tl.int32)
    offs = tl.arange(0, BLOCK)[:, None] * WIDTH
    zeros = tl.zeros((BLOCK, WIDTH), dx_ptr.dtype.element_ty)
    tl.store(dx_ptr + start + offs + tl.arange(0, WIDTH)[None, :], zeros, mask=offs < length)
    tl.debug_barrier()  # a thread's result lies among zeros that another has stored
    size = tl.cast(columns, tl.int64) * n
    first = start // size
    results = ((start + length - 1) // size - first + 1).to(tl.int32) * columns
    indices_ptr += first * columns
    dout_ptr += first * columns
    before = first * size - start
    for begin in tl.range(0, results, RESULTS):
        result = begin + tl.arange(0, RESULTS)
        index = tl.load(indices_ptr + result, mask=result < results, other=-1)
        matrix = result // columns
        place = before + matrix * size + index * columns + (result - matrix * columns)
        here = (result < results) & (place >= 0) & (place < length)
        dout = tl.load(dout_ptr + result, mask=here, other=0.0)
        tl.store(dx_ptr + start + place, dout, mask=here)


def launch_filled(op, dout, x=None, out=None, ties=None, indices=None, n=None, *, config):
    """As ``launch_backward``, for max."""
    n = x.shape[1] if n is None else n
    outer, inner = dout.shape
    total, width = outer * n * inner, vector_of(dout)
    dx = torch.empty(triton.cdiv(total, width) * width, dtype=dout.dtype, device=dout.device)
    threads = 32 * config["num_warps"]
    block = threads * config["VECTORS"]
    launch(
        _filled_backward_kernel,
        (triton.cdiv(total, block * width),),
        indices,
        dout,
        dx,
        total,
        n,
        inner,
        BLOCK=block,
        WIDTH=width,
        RESULTS=threads,
        num_warps=config["num_warps"],
    )
    return dx[:total].view(outer, n, inner)
