"""`tiles` and `separate`: plain Triton brings tiles of weights to 16 bits; and launchers of what is written in Gluon.

Gluon's kernels for Hopper are imported when they are first launched.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .many_rows import in_fragments


@triton.jit
def _scale_and_zero(scales_ptr, zeros_ptr, offs, mask):
    scales = tl.load(scales_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if zeros_ptr is not None:
        zeros = tl.load(zeros_ptr + offs, mask=mask, other=0).to(tl.float32)
    else:
        zeros = tl.full(scales.shape, 8, tl.float32)
    return scales, zeros


@triton.jit
def _weight(words, scales, zeros, ROW: tl.constexpr, COLUMN: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """The weights of row g + 8 ROW in packed words, rounded to DTYPE; COLUMN is 2 q + p (8 bits: p)."""
    if BITS == 4:
        number = ((words >> (4 * (ROW + 2 * (COLUMN // 2) + 4 * (COLUMN % 2)))) & 15).to(tl.float32) - zeros
    else:
        SIGN: tl.constexpr = 8 * ((2 * COLUMN + ROW + 1) % 4) + 7  # in the next byte
        magnitude = ((words >> (8 * (2 * COLUMN + ROW))) & 127).to(tl.float32)
        number = tl.where(((words >> SIGN) & 1) != 0, -magnitude, magnitude)
    return (number * scales).to(DTYPE)


@triton.jit
def _both_rows(words, scales_0, zeros_0, scales_1, zeros_1, COLUMN: tl.constexpr, BITS: tl.constexpr,
               DTYPE: tl.constexpr):  # fmt: skip
    first = _weight(words, scales_0, zeros_0, 0, COLUMN, BITS, DTYPE)
    return tl.join(first, _weight(words, scales_1, zeros_1, 1, COLUMN, BITS, DTYPE))


@triton.jit
def block_of_weights(
    words_ptr, scales_ptr, zeros_ptr, first_n, first_k, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Weights BLOCK_N x BLOCK_K from (first_n, first_k) on, multiples of packed tiles, in DTYPE; 0 outside."""
    TILE_K: tl.constexpr = 256 // BITS
    TILES_N: tl.constexpr = BLOCK_N // 16
    TILES_K: tl.constexpr = BLOCK_K // TILE_K
    tile_n = first_n // 16 + tl.arange(0, TILES_N)[None, :, None, None, None]
    tile_k = first_k // TILE_K + tl.arange(0, TILES_K)[:, None, None, None, None]
    g = tl.arange(0, 8)[None, None, :, None, None]
    t = tl.arange(0, 4)[None, None, None, :, None]
    word = tl.arange(0, 4)[None, None, None, None, :]
    inside = (tile_n < tl.cdiv(N, 16)) & (tile_k < tl.cdiv(K, TILE_K))
    tile = tile_n.to(tl.int64) * tl.cdiv(K, TILE_K) + tile_k
    words = tl.load(words_ptr + tile * 128 + (g * 16 + t * 4 + word), mask=inside, other=0)
    group = tile_k * 0
    if GROUP > 0:
        k = tile_k * TILE_K
        if BITS == 4:
            k += word // 2 * 32
        inside = inside & (k < K)
        group = k // GROUP
    offs = (tile_n.to(tl.int64) * groups + group) * 16 + 2 * g
    scales_0, zeros_0 = _scale_and_zero(scales_ptr, zeros_ptr, offs, inside)
    scales_1, zeros_1 = _scale_and_zero(scales_ptr, zeros_ptr, offs + 1, inside)
    both = (scales_0, zeros_0, scales_1, zeros_1)
    even = _both_rows(words, *both, 0, BITS, DTYPE)
    odd = _both_rows(words, *both, 1, BITS, DTYPE)
    if BITS == 4:  # tile of k, tile of n, g, t, half tile, half word, h, q, p
        even = tl.join(even, _both_rows(words, *both, 2, BITS, DTYPE))
        odd = tl.join(odd, _both_rows(words, *both, 3, BITS, DTYPE))
        split = tl.join(even, odd).reshape(TILES_K, TILES_N, 8, 4, 2, 2, 2, 2, 2)
        ordered = split.permute(1, 6, 2, 0, 4, 3, 5, 7, 8)
    else:  # tile of k, tile of n, g, t, half word, q, h, p
        split = tl.join(even, odd).reshape(TILES_K, TILES_N, 8, 4, 2, 2, 2, 2)
        ordered = split.permute(1, 6, 2, 0, 3, 4, 5, 7)
    return ordered.reshape(BLOCK_N, BLOCK_K)


@triton.jit
def _tiles_kernel(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, OPERAND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of y, BLOCK_M x BLOCK_N; it goes down GROUP_M rows of tiles before the next column.

    Weights are rounded to x's dtype, and multiplied in OPERAND.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = tl.program_id(0) // tiles_of_group * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    within = tl.program_id(0) % tiles_of_group
    tile_m, tile_n = first_m + within % height, within // height
    # Rows past M wrap around to valid ones: the loop needs no mask for them, and they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs) if EVEN_K else tl.load(x_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
        w = block_of_weights(words_ptr, scales_ptr, zeros_ptr, tile_n * BLOCK_N, k, N, K, groups,
                             GROUP, BITS, BLOCK_N, BLOCK_K, x_ptr.dtype.element_ty)  # fmt: skip
        acc = tl.dot(x.to(OPERAND), w.to(OPERAND).T, acc, input_precision="ieee")
        x_ptrs += BLOCK_K
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    y_ptrs = y_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@triton.jit
def _dequantise_kernel(
    words_ptr, scales_ptr, zeros_ptr, w_ptr, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N x BLOCK_K weights [n, k], written in the dtype of w."""
    first_n, first_k = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_K
    w = block_of_weights(words_ptr, scales_ptr, zeros_ptr, first_n, first_k, N, K, groups,
                         GROUP, BITS, BLOCK_N, BLOCK_K, w_ptr.dtype.element_ty)  # fmt: skip
    offs_n, offs_k = first_n + tl.arange(0, BLOCK_N), first_k + tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    tl.store(w_ptrs, w, mask=(offs_n[:, None] < N) & (offs_k[None, :] < K))


def operand_of(x):
    """What ``tl.dot`` multiplies for operands like x, of 16 bits."""
    # The interpreter's tl.dot multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    if x.device.type == "cpu" and x.dtype == torch.bfloat16:
        return tl.float32
    return tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16


def launch_tiles(bits, x, words, scales, zeros, n, group, *, config):
    """Launch ``_tiles_kernel`` for weights of so many bits; ``group`` 0: a scale for each row."""
    m, k = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    launch(
        _tiles_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, words, scales, zeros, y, m, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, OPERAND=operand_of(x), EVEN_K=k % config["BLOCK_K"] == 0, **config,
    )  # fmt: skip
    return y


def launch_dequantise(bits, words, scales, zeros, n, k, group, *, config):
    """The weights [n, k] that packed ones stand for, in the dtype of their scales."""
    w = torch.empty((n, k), dtype=scales.dtype, device=scales.device)
    if in_fragments(gpu_of(w.device)):
        from .dequantise import write_weights

        write_weights(bits, words, scales, zeros, w, group, config=config)
        return w
    grid = (triton.cdiv(n, config["BLOCK_N"]), triton.cdiv(k, config["BLOCK_K"]))
    launch(
        _dequantise_kernel, grid, words, scales, zeros, w, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, **config,
    )  # fmt: skip
    return w


def launch_separate(bits, x, words, scales, zeros, n, group, *, config):
    """Write the weights in x's dtype, then leave the product to torch, which is cuBLAS.

    By ``mm``, which a recording of the call has in inference mode, too; ``linear`` would not be repeated there.
    """
    w = launch_dequantise(bits, words, scales, zeros, n, x.shape[1], group, config=config)
    return torch.mm(x, w.t())


def launch_direct(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel that has all operands by TMA."""
    from .hopper_direct import multiply_direct

    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    multiply_direct(bits, x, words, scales, zeros, y, group, config=config, programs=gpu_of(x.device).sms)
    return y


def launch_light(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel of one role, for small products."""
    from .hopper_light import multiply_light

    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    multiply_light(bits, x, words, scales, zeros, y, group, config=config)
    return y


def launch_specialized(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel of Hopper's own file."""
    from .hopper import specialized

    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    programs = gpu_of(x.device).sms
    specialized(bits, x, words, scales, zeros, y, group, config=config, programs=programs)
    return y


def launch_converted(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel that converts blocks of weights in shared memory."""
    from .hopper_converted import multiply_converted

    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    programs = gpu_of(x.device).sms
    multiply_converted(bits, x, words, scales, zeros, y, x.shape[1], group, config=config, programs=programs)
    return y
