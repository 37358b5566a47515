"""How the host launches reduction.cu."""

import torch

from .layout import entry, require_vectors

_THREADS, _VECTOR_BYTES = 256, 16
_SHORT_BYTES = 2048
"""Rows of so many bytes or fewer are summed by lanes of one warp: a block would have less than a vector a thread."""
_BLOCKS_AN_SM = 8
"""Blocks of 256 threads that an SM holds: 2048 threads."""
_LEAST_VECTORS = 4
"""Vectors a thread has at least before a row is shared by several blocks."""


def rows(program, x, op):
    """``x.sum(1)`` or ``x.mean(1)`` of ``x`` [outer, n, 1]; several blocks share a row where there are few of them."""
    if op not in ("sum", "mean") or x.dim() != 3 or x.shape[2] != 1:
        raise NotImplementedError("the CUDA C++ kernel has sum and mean, over the last axis or over all elements")
    require_vectors(x)
    outer, n, _ = x.shape
    divisor = program.float32(n if op == "mean" else 1)
    if n * x.element_size() <= _SHORT_BYTES and n * x.element_size() % _VECTOR_BYTES == 0:
        return _short(program, x, outer, n, divisor)
    return _long(program, x, outer, n, divisor)


def _short(program, x, outer, n, divisor):
    kernel = program.kernel(entry("short_rows", x))
    vectors = n * x.element_size() // _VECTOR_BYTES
    group = min(32, 1 << (vectors - 1).bit_length())
    config = program.config(grid=-(-outer * group // _THREADS), block=_THREADS)

    def thunk():
        out = torch.empty((outer, 1), dtype=x.dtype, device=x.device)
        scalars = program.int64(outer), program.int64(n), program.int32(group), divisor
        program.launch(config, kernel, x, out, *scalars)
        return out

    return thunk


def _long(program, x, outer, n, divisor):
    kernel = program.kernel(entry("long_rows", x))
    most = -(-n * x.element_size() // (_VECTOR_BYTES * _THREADS * _LEAST_VECTORS))
    splits = max(min(program.sms * _BLOCKS_AN_SM // outer, most), 1)
    config = program.config(grid=outer * splits, block=_THREADS)
    # The kernel leaves its tickets at zero, so every call may use these.
    tickets = torch.zeros(outer, dtype=torch.int32, device=x.device)
    parts = torch.empty(outer * splits, dtype=torch.float32, device=x.device)

    def thunk():
        out = torch.empty((outer, 1), dtype=x.dtype, device=x.device)
        program.launch(config, kernel, x, out, parts, tickets, program.int64(n), program.int32(splits), divisor)
        return out

    return thunk
