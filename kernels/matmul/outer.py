"""`outer`: sums over so few k that writing C is all the work, without `tl.dot`, which would pad k to 16 or 32."""

import triton
import triton.language as tl
from atlas.declaration import GPU, Case, Config, element_size
from atlas.operators import launch

from .tiled import empty_product


@triton.jit
def _outer_kernel(
    a_ptr, b_ptr, c_ptr, M, N, stride_am, stride_ak, stride_bk, stride_bn,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M x BLOCK_N of C and adds up K products of a column of A and a row of B, in fp32."""
    N = N // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler writes WIDTH elements at once
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a_ptrs = a_ptr + offs_m.to(tl.int64) * stride_am
    b_ptrs = b_ptr + offs_n.to(tl.int64) * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.static_range(K):
        a = tl.load(a_ptrs + k * stride_ak, mask=offs_m < M, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs + k * stride_bk, mask=offs_n < N, other=0.0).to(tl.float32)
        acc += a[:, None] * b[None, :]
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def launch_outer(a, b, tf32=False, *, config):
    """Launch the kernel; operands may have any strides.  fp32 is multiplied as it is, also where tf32 is allowed."""
    c, k = empty_product(a, b), a.shape[1]
    if not k:
        return c.zero_()
    if c.numel():
        m, n = c.shape
        width = 16 // c.element_size()
        launch(
            _outer_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
            a, b, c, m, n, *a.stride(), *b.stride(), K=k, WIDTH=1 if n % width else width, **config,
        )  # fmt: skip
    return c


OUTER_SPACE = {"BLOCK_M": (8, 16, 32), "BLOCK_N": (128, 256, 512), "num_warps": (4, 8)}

_MOST = {"fp32": 8, "tf32": 4, "fp16": 4, "bf16": 4}
"""Elements of k: beyond those of 16 bits `tl.dot` takes as long, of rows off 16 bytes, too, and its FMA pads k to 32.

4096 x 2051 x k: of 4 in bf16 14.5 us for 20.3 of `tl.dot`, of 8 in fp16 20.0 for 20.3, in fp32 21.4 for 41.7 (H200).
"""
_MOST_OFF_16_BYTES = 6
"""The same of 16 bits where rows of C are off 16 bytes: 4096 x 2051 x 6 in fp16 14.4 us for 18.7."""


def multiplies_outer(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    most = _MOST[problem.dtype]
    if element_size(problem.dtype) == 2 and problem["n"] % 8:
        most = _MOST_OFF_16_BYTES
    if problem["k"] > most:
        return f"a sum over more than {most} products is `tl.dot`'s"
    if min(problem["m"], problem["n"]) == 1:
        return "a vector, of which C has one row or column"
    return ""


def fits_outer(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best."""
    elements = config["BLOCK_M"] * config["BLOCK_N"] // (32 * config["num_warps"])
    if not 16 <= elements <= 32:
        return f"{elements} elements a thread: 16 or 32 are enough work and leave registers"
    return ""


def default_outer(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of fp32 wider tiles, where C has their columns: 4096 x 2048 x 8 takes 12.0 us so, 14.5 by 16 x 256 (H200)."""
    wide = element_size(problem.dtype) == 4 and problem["n"] > 256
    return dict(zip(OUTER_SPACE, (8, 512, 4) if wide else (16, 256, 4), strict=True))
