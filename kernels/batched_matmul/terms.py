"""The variant `terms`: fp32 on tensor cores by six products of bf16, of terms that each program makes of its blocks.

As `bf16x6` (kernels/matmul/hopper_bf16x6.py), whose terms are written first: that pays where each is read often.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, Variant, gpu_of
from atlas.operators import launch

from kernels.common.products import layout_of, narrow, precision_of_product
from kernels.common.tiles import grouped_tile, store_tile

from .estimates import count
from .spaces import fma_microseconds
from .tiled import empty_products, launch_tiled, tiles_of


@triton.jit
def _terms(x, TERM: tl.constexpr):
    """Three numbers of bf16 whose sum is ``x``, in TERM; the first is cut off, so it is finite where ``x`` is.

    The others of an infinity are NaN.
    """
    first = x.to(tl.bfloat16, fp_downcast_rounding="rtz")
    left = x - first.to(tl.float32)
    second = left.to(tl.bfloat16)
    third = (left - second.to(tl.float32)).to(tl.bfloat16)
    return first.to(TERM), second.to(TERM), third.to(TERM)


@triton.jit
def _terms_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, TERM: tl.constexpr,
):  # fmt: skip
    """Program p owns one tile of one product, as in ``_tiled_kernel``.

    Tensor cores cut off what does not fit into their sums: one there is of a block of K, and is then added, rounded.
    Small products come first.  Where they are not finite, an operand or the product of first terms is not, and that
    says what fp32 would.
    """
    tl.assume(K > 0)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile_m, tile_n = grouped_tile(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    # Rows past M and columns past N wrap around: see ``multiply_tile`` in kernels/common/tiles.py.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + batch * stride_ab + offs_m[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + batch * stride_bb + offs_k.to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
    block_k = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        a0, a1, a2 = _terms(a, TERM)
        b0, b1, b2 = _terms(b, TERM)
        part = tl.dot(a2, b0)
        part = tl.dot(a1, b1, part)
        part = tl.dot(a0, b2, part)
        part = tl.dot(a1, b0, part)
        part = tl.dot(a0, b1, part)
        part = tl.where(tl.abs(part) < float("inf"), part, 0.0)
        acc += tl.dot(a0, b0, part)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    store_tile(c_ptr + batch * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


def launch_terms(a, b, tf32=False, *, config):
    """Launch ``_terms_kernel``; other operands than of fp32 in IEEE precision go to `tiled`."""
    if a.dtype != torch.float32 or precision_of_product(a, tf32) == "tf32":
        return launch_tiled(a, b, tf32, config=config)
    c, k = empty_products(a, b), a.shape[2]
    if not k:
        return c.zero_()
    if c.numel():
        launch(
            _terms_kernel, (tiles_of(c, config),), a, b, c, *c.shape[1:], k, *a.stride(), *b.stride(),
            EVEN_K=k % config["BLOCK_K"] == 0, TERM=tl.float32 if gpu_of(a.device).functional else tl.bfloat16,
            **config,
        )  # fmt: skip
    return c


TERMS_SPACE = {
    "BLOCK_M": (64,),
    "BLOCK_N": (32, 64),
    "BLOCK_K": (32,),
    "GROUP_M": (8,),
    "num_warps": (4,),
    "num_stages": (3,),
}

# Of one SM of an H200, fitted to 9 timings; a launch's 3 us apart, as in the estimates of FMA.
_MULTIPLICATIONS = {32: 1.83e5, 64: 2.1e5}
"""Of fp32 in a microsecond, by BLOCK_N."""
_SINGLY = 1.7e5
"""The same where A is read element by element: 96 of 77 x 96 x 333 take 27.7 us so, 34.1 by `tiled` (H200)."""
_TILE = 0.7
"""Microseconds of a tile beyond its products."""
_LEAST_TILES = 2.5
"""Tiles for each SM: fewer wait for what they read (8 of 768 x 64 x 80 NT take 6.3 us, 6.3 by `swizzled`)."""
_PAYS = 0.95
"""The share of FMA's time from which on the variant is left out; estimates of FMA are 10 % low where tiles are many."""


def terms() -> Variant:
    return Variant(
        name="terms",
        summary="fp32 as three terms of bf16 that each program makes of its blocks; six products on tensor cores",
        launch=launch_terms,
        space=TERMS_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="swizzled",
    )


def _block_n(problem: Case) -> int:
    """Narrow tiles only where they leave out what wide ones leave empty, and nothing is read element by element."""
    return 32 if 0 < problem["n"] % 64 <= 32 and not narrow(problem) else 64


def terms_microseconds(problem: Case, gpu: GPU) -> float:
    """About how long the variant takes beyond a launch; infinite where it does not take a case."""
    return math.inf if _handles(problem, gpu) else _microseconds(problem, gpu)


def _microseconds(problem: Case, gpu: GPU) -> float:
    block_n = _block_n(problem)
    rate = _SINGLY if narrow(problem) else _MULTIPLICATIONS[block_n]
    return count((64, block_n), problem) / gpu.sms * (64 * block_n * problem["k"] / rate + _TILE)


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case.

    B read element by element takes twice as long as FMA: 12 of 577 x 197 x 128 56 us, 25.5 (H200).
    """
    if problem.dtype != "fp32":
        return "for fp32 in IEEE precision"
    if not gpu.functional and Capability.WGMMA not in gpu.capabilities:
        return "timed on Hopper alone"
    of_a, of_b = layout_of(problem)
    if of_a == "T" or problem["n" if of_b == "N" else "k"] % 16:
        return "A by columns, or B in rows off 16 elements: threads gather what tensor cores take"
    if count((64, _block_n(problem)), problem) < _LEAST_TILES * gpu.sms:
        return "few tiles, of few warps"
    late = _microseconds(problem, gpu) > _PAYS * fma_microseconds(problem, gpu)
    return "FMA should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    return dict(zip(TERMS_SPACE, (64, _block_n(problem), 32, 8, 4, 3), strict=True))


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    return "half of each tile would be empty" if config["BLOCK_N"] == 64 and problem["n"] <= 32 else ""
