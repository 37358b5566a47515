"""The variant `fused`: a product that normalises each tile of x on its way to ``tl.dot``."""

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, Config, element_size
from atlas.declaration.products import uses_tensor_cores
from atlas.operators import launch

from .statistics import launch_normalize

SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}


@triton.jit
def _fused_kernel(
    x_ptr, weight_ptr, bias_ptr, mean_ptr, rest_ptr, rstd_ptr, w_ptr, c_ptr, y_ptr, M, N, K,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_C: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, OPERAND: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of y, BLOCK_M x BLOCK_N; it goes down GROUP_M rows of tiles before the next column.

    A tile of x is normalised in fp32 and rounded to OPERAND, the dtype of the product's factors.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = tl.program_id(0) // tiles_of_group * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    within = tl.program_id(0) % tiles_of_group
    tile_m, tile_n = first_m + within % height, within // height
    # Rows past M and columns past N wrap around to valid ones: the loop needs no mask for them; they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    mean, rest = tl.load(mean_ptr + offs_m)[:, None], tl.load(rest_ptr + offs_m)[:, None]
    rstd = tl.load(rstd_ptr + offs_m)[:, None]
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    w_ptrs = w_ptr + offs_n[None, :] * K + offs_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        inside = offs_k < K - k
        if EVEN_K:
            x, w = tl.load(x_ptrs), tl.load(w_ptrs)
        else:  # w is 0 past K, and so is what it adds to the sum
            x = tl.load(x_ptrs, mask=inside[None, :], other=0.0)
            w = tl.load(w_ptrs, mask=inside[:, None], other=0.0)
        a = (x.to(tl.float32) - mean - rest) * rstd
        if HAS_WEIGHT:
            a *= tl.load(weight_ptr + k + offs_k, mask=inside, other=0.0).to(tl.float32)[None, :]
        if HAS_BIAS:
            a += tl.load(bias_ptr + k + offs_k, mask=inside, other=0.0).to(tl.float32)[None, :]
        acc = tl.dot(a.to(x.dtype).to(OPERAND), w.to(OPERAND), acc, input_precision=PRECISION)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if HAS_C:
        acc += tl.load(c_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    y_ptrs = y_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def launch_fused(x, weight, bias, eps, w, c=None, *, config):
    (m, k), n = x.shape, w.shape[0]
    mean, rest, rstd = launch_normalize(x, weight, bias, None, eps)
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    # The interpreter's tl.dot multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    as_fp32 = x.dtype == torch.float32 or (x.device.type == "cpu" and x.dtype == torch.bfloat16)
    sixteen = tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16
    launch(
        _fused_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, weight, bias, mean, rest, rstd, w, c, y, m, n, k,
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, HAS_C=c is not None,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"], GROUP_M=config["GROUP_M"],
        EVEN_K=k % config["BLOCK_K"] == 0, PRECISION="ieee", OPERAND=tl.float32 if as_fp32 else sixteen,
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return y


def _narrow(problem: Case) -> bool:
    """Whether rows of x and W are not aligned for wide loads, so that the loop is not pipelined."""
    return bool(problem["k"] % 16)


_LARGE_TILES = 3 * (128 + 128) * 64 * 2
"""Bytes of shared memory that three stages of 128 x 128 tiles take."""


def fits_fused(config: Config, problem: Case, gpu: GPU) -> str:
    block_m, block_n, block_k, warps = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"))
    shared = config["num_stages"] * (block_m + block_n) * block_k * element_size(problem.dtype)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if block_m >= max(32, 2 * problem["m"]) or block_n >= max(64, 2 * problem["n"]):
        return "a tile twice as large as y"
    tiles = triton.cdiv(problem["m"], block_m) * triton.cdiv(problem["n"], block_n)
    if block_m * block_n > 2048 and 4 * tiles < gpu.sms:
        return f"{tiles} tiles leave most of {gpu.sms} SMs idle"
    roomy = uses_tensor_cores(problem, gpu) and gpu.shared_bytes >= _LARGE_TILES
    if roomy and block_m * block_n < 128 * 128 and tiles > 8 * gpu.sms:
        return f"{tiles} tiles, where fewer and larger ones reach every SM"
    accumulators, normalised = block_m * block_n // (32 * warps), block_m * block_k // (32 * warps)
    if uses_tensor_cores(problem, gpu) and not _narrow(problem):
        if (block_m < 64 < problem["m"] and tiles > gpu.sms) or config["num_stages"] == 2:
            return "each tile of x is normalised for too few products, or too little is under way"
        if not 4 <= accumulators <= 128 or normalised > 64 or block_k < 64:
            return f"{accumulators} accumulators and {normalised} elements of x a thread"
        return ""
    most = 64 if problem.dtype == "fp32" else 32
    if not (4 if block_m == 16 else 16) <= accumulators <= most or block_k > 32 or config["num_stages"] > 2:
        return f"{accumulators} accumulators a thread, {block_k} columns: registers spill, or too little work a warp"
    return ""


def fused_default(problem: Case, gpu: GPU) -> dict[str, int]:
    block_m = max(16, min(128, triton.next_power_of_2(problem["m"])))
    if not uses_tensor_cores(problem, gpu) or _narrow(problem):
        tile = (min(64, block_m), 32, 16, 8, 4, 2)
    elif problem["m"] * problem["n"] < gpu.sms * 64 * 64:
        tile = (min(32, block_m), 64, 64, 8, 4, 3)
    elif problem["m"] * problem["n"] < gpu.sms * 128 * 128 or gpu.shared_bytes < _LARGE_TILES:
        tile = (min(64, block_m), 64, 64, 8, 4, 3)
    else:
        tile = (block_m, 128, 64, 8, 8 if block_m == 128 else 4, 3)
    return dict(zip(SPACE, tile, strict=True))
