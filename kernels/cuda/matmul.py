"""How the host launches matmul.cu."""

import torch

from .layout import entry, require_vectors

_THREADS, _BLOCK = 256, 128
_NAIVE_FLOPS = 2 * 4096**3
"""What the naive kernel is asked for at most: a larger product would take most of a benchmark's time."""


def naive(program, a, b, tf32=False):
    """``a @ b``, an element of the result a thread, both operands from global memory."""
    _require_full_precision(tf32)
    (m, k), n = a.shape, b.shape[1]
    if 2 * m * n * k > _NAIVE_FLOPS:
        raise NotImplementedError("the naive CUDA C++ kernel is timed up to 4096 x 4096 x 4096: it would take too long")
    return _product(program, "naive", (-(-n // 32), -(-m // (_THREADS // 32))), a, b)


def tiled(program, a, b, tf32=False):
    """``a @ b`` by tiles in shared memory; tensor cores multiply 16-bit dtypes, FMA fp32."""
    _require_full_precision(tf32)
    (m, k), n = a.shape, b.shape[1]
    if a.element_size() == 2 and (k % 8 or n % 8):
        raise NotImplementedError("the tiled CUDA C++ kernel copies 16 bytes at once: k and n are no multiples of 8")
    if a.dtype is torch.bfloat16 and program.arch < 80:
        raise NotImplementedError("tensor cores take bf16 from compute capability 8.0 on")
    return _product(program, "tiled", -(-m // _BLOCK) * -(-n // _BLOCK), a, b)


def _require_full_precision(tf32):
    if tf32:
        raise NotImplementedError("the CUDA C++ kernel multiplies fp32 in full, by FMA")


def _product(program, step, grid, a, b):
    require_vectors(a, b)
    (m, k), n = a.shape, b.shape[1]
    kernel = program.kernel(entry(step, a))
    config = program.config(grid=grid, block=_THREADS)

    def thunk():
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)
        program.launch(config, kernel, a, b, c, program.int32(m), program.int32(n), program.int32(k))
        return c

    return thunk
